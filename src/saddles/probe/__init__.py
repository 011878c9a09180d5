"""The probe: rank growth of real transformers, live or from checkpoints.

- `layouts`: where a model keeps the weights of its attention heads;
- `weights`: a live model, checkpoints and series of them, and the change of a matrix;
- `measuring`: spectra and ranks of one model against a reference;
- `recording`: measurements while a model trains; `inspection`: measurements of a series of checkpoints;
- `lora`: the LoRA ranks that a fine-tuned model needs.

Torch and the libraries on it are imported when they are used, not before.
"""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.probe.inspection import inspect as inspect
    from saddles.probe.inspection import inspection_cost as inspection_cost
    from saddles.probe.layouts.adapters import fused as fused
    from saddles.probe.layouts.adapters import register as register
    from saddles.probe.layouts.adapters import separate as separate
    from saddles.probe.layouts.find_heads import find_layout as find_layout
    from saddles.probe.lora.adapter import lora_extract as lora_extract
    from saddles.probe.lora.plan import LoraPlan as LoraPlan
    from saddles.probe.lora.planning import lora_plan as lora_plan
    from saddles.probe.lora.reshape import lora_compress as lora_compress
    from saddles.probe.lora.reshape import lora_grow as lora_grow
    from saddles.probe.lora.reshape import lora_merge as lora_merge
    from saddles.probe.measuring import join as join
    from saddles.probe.measuring import measure as measure
    from saddles.probe.recording.huggingface import SaddlesCallback as SaddlesCallback
    from saddles.probe.recording.journal import recorded as recorded
    from saddles.probe.recording.lightning import LightningSaddles as LightningSaddles
    from saddles.probe.recording.recorder import record as record
    from saddles.probe.verification import verify as verify
    from saddles.probe.weights.live_model import heads as heads
    from saddles.probe.weights.live_model import spectra as spectra

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__, renamed={"watch": ("record", "0.2.0")})
