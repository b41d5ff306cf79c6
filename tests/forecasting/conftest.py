"""What tests of forecasting share."""

import pytest


@pytest.fixture
def read(tmp_path):
    """Read text or bytes as a file."""

    frames = pytest.importorskip("titans.forecasting.frames")

    def read(content, **options):
        path = tmp_path / "some.data"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return frames.read_csv(path, **options)

    return read
