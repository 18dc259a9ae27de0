"""``python -m tinkc`` is the command ``tinkc``."""

from ._program import main

main()
