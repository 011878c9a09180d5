"""Why a model in which no attention head was found is refused, and what to do."""

from saddles.errors import SaddlesError
from saddles.probe.layouts.head_counts import NO_COUNT
from saddles.probe.layouts.layout import Layout

_RECURRENT = ("mamba", "A_log", "ssm", "rwkv")
"""Words in parameters of state-space and recurrent layers."""


def need_heads(layout: Layout) -> None:
    """Refuse a model in which no head was found."""
    if layout.heads:
        return
    uncounted = [name for name, reason in layout.skipped if reason.startswith(NO_COUNT)]
    if uncounted:
        more = f" and {len(uncounted) - 1} more" if len(uncounted) > 1 else ""
        raise SaddlesError(
            f"No attention head was found: {NO_COUNT} ({uncounted[0]}{more}). Give it, as num_attention_heads in the "
            "model's config (model.config = {'num_attention_heads': 12} for one of your own), or for files with "
            "--heads 12 or --config FILE (from Python, config=)."
        )
    reasons = "; ".join(f"{name}: {reason}" for name, reason in layout.skipped if "attention" in reason)[:300]
    refused = next((f"{name}: {reason}" for name, reason in layout.skipped if "vector" not in reason), "")
    names = [*(name for name, _ in layout.skipped), *(module.parameter for module in layout.modules)]
    recurrent = next((name for name in names if any(word in name for word in _RECURRENT)), "")
    if recurrent and not reasons:
        raise SaddlesError(
            f"The model has no attention: {recurrent} belongs to a state-space or recurrent layer. "
            "`saddles lora plan BASE TUNED` measures the change of its plain matrices."
        )
    raise SaddlesError(
        f"No attention head was found ({reasons or refused or 'no parameter looks like attention'}). "
        "If the model has attention, register an adapter with saddles.probe.register."
    )
