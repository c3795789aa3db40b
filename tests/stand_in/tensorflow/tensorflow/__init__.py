"""TensorFlow's exceptions and no more, for workers with a stand-in for the engine: what sorts them is real."""


class _OpError(Exception):
    def __init__(self, _node: object, _operation: object, message: str) -> None:
        super().__init__(message)


class errors:
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
