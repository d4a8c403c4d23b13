"""Images that a runner has pulled, and those of them that have to go. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class PulledImages:
    """Sizes of pulled images in bytes, the least recently used first; images of somebody else are not among them."""

    max_bytes: int
    _sizes: dict[str, int] = field(default_factory=dict)

    def add(self, image: str, num_bytes: int) -> None:
        """Count an image that was pulled."""
        self._sizes[image] = num_bytes

    def use(self, image: str) -> None:
        """Make an image the most recently used one, if it was pulled."""
        if image in self._sizes:
            self._sizes[image] = self._sizes.pop(image)

    def find_surplus(self) -> Iterator[str]:
        """Yield images to remove, and to `forget`, until the others fit; the most recently used one stays."""
        for image in list(self._sizes)[:-1]:
            if sum(self._sizes.values()) <= self.max_bytes:
                return
            yield image

    def forget(self, image: str) -> None:
        """Stop counting an image that is gone."""
        self._sizes.pop(image, None)
