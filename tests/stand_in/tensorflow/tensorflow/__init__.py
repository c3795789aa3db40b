"""Only TensorFlow's exceptions, for workers with a stand-in engine.

The code that sorts them is the real one.
"""


class _OpError(Exception):
    def __init__(self, _node: object, _operation: object, message: str) -> None:
        super().__init__(message)


class errors:
    OpError = _OpError

    class NotFoundError(_OpError):
        pass

    class ResourceExhaustedError(_OpError):
        pass

    class InternalError(_OpError):
        pass

    class UnavailableError(_OpError):
        pass

    class AbortedError(_OpError):
        pass

    class CancelledError(_OpError):
        pass

    class DeadlineExceededError(_OpError):
        pass
