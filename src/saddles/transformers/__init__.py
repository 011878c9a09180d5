"""Lab `transformers`: vision and language models, trained and measured by the probe."""

from typing import TYPE_CHECKING

from saddles.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from saddles.transformers.feed import Feed as Feed
    from saddles.transformers.feed import ImageFeed as ImageFeed
    from saddles.transformers.feed import TextFeed as TextFeed
    from saddles.transformers.files import FileFeed as FileFeed
    from saddles.transformers.files import load_pictures as load_pictures
    from saddles.transformers.images import Images as Images
    from saddles.transformers.images import load_images as load_images
    from saddles.transformers.recipe import Recipe as Recipe
    from saddles.transformers.text import Text as Text
    from saddles.transformers.text import load_text as load_text
    from saddles.transformers.training import Setup as Setup
    from saddles.transformers.training import train as train
    from saddles.transformers.vit import ViTShape as ViTShape
    from saddles.transformers.vit import make_gpt2 as make_gpt2
    from saddles.transformers.vit import make_vit as make_vit

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
