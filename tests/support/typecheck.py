"""The type checker that pytest puts on every function of saddles: whole numbers count as real ones."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
