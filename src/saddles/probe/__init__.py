"""The probe: rank growth of real transformers, live or from checkpoints.

Torch and the libraries on it are imported when they are used, not before.
"""

from typing import TYPE_CHECKING

from saddles.core.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.probe.adapters import fused as fused
    from saddles.probe.adapters import register as register
    from saddles.probe.adapters import separate as separate
    from saddles.probe.finding import find_layout as find_layout
    from saddles.probe.huggingface import SaddlesCallback as SaddlesCallback
    from saddles.probe.inspection import inspect as inspect
    from saddles.probe.journal import recorded as recorded
    from saddles.probe.lightning import LightningSaddles as LightningSaddles
    from saddles.probe.live import heads as heads
    from saddles.probe.live import spectra as spectra
    from saddles.probe.lora import LoraPlan as LoraPlan
    from saddles.probe.lora import lora_plan as lora_plan
    from saddles.probe.lora_adapter import lora_extract as lora_extract
    from saddles.probe.measuring import join as join
    from saddles.probe.measuring import measure as measure
    from saddles.probe.recorder import watch as watch

_HOMES = {
    "LoraPlan": "saddles.probe.lora",
    "LightningSaddles": "saddles.probe.lightning",
    "SaddlesCallback": "saddles.probe.huggingface",
    "find_layout": "saddles.probe.finding",
    "fused": "saddles.probe.adapters",
    "heads": "saddles.probe.live",
    "inspect": "saddles.probe.inspection",
    "join": "saddles.probe.measuring",
    "lora_extract": "saddles.probe.lora_adapter",
    "lora_plan": "saddles.probe.lora",
    "measure": "saddles.probe.measuring",
    "recorded": "saddles.probe.journal",
    "register": "saddles.probe.adapters",
    "separate": "saddles.probe.adapters",
    "spectra": "saddles.probe.live",
    "watch": "saddles.probe.recorder",
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
