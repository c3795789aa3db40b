"""Programs that other processes start by the path of their file: over ssh, by Ray, or on this host.

Python puts the folder of such a file first on its path, where a module hides one of Python's
library, or a user's, that has its name. So these files are in a folder of their own, which each
takes off the path. (`-m` and `-c` put the current folder there, which may hold anything, and Python
3.10 has no option that leaves it out.)
"""

from pathlib import Path

_FOLDER = Path(__file__).parent
AGENT = str(_FOLDER / "agent.py")
OVER_RAY = str(_FOLDER / "over_ray.py")
REACHING = str(_FOLDER / "reaching.py")
WORKER = str(_FOLDER / "worker.py")
