"""Replaces methods of Keras, TensorFlow or a user's classes inside a block, in its thread only.

What stands in the class is exchanged once, for a method that looks up whether its thread is inside
such a block. That method stays: outside of a block, and in every other thread, it calls the
original. Nothing is put back, so threads can't put it back in the wrong order.

    apply = Method.of(optimizer, "apply")
    with acting({apply: lambda original, optimizer, grads: ...}):
        ...
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

# Held while a step is traced or tried in parts. Both set options of the whole process, such as
# TF32, and Keras declares TensorFlow not thread-safe.
tracing_lock = threading.RLock()
_installing = threading.Lock()


@dataclass(frozen=True)
class Method:
    """A method of a class or one instance of it, or a function of a module."""

    owner: Any  # the class or the module in which it stands
    name: str
    instance_id: int | None = None

    @classmethod
    def of(cls, instance: Any, name: str, owner: type | None = None) -> Method:
        """The method of one instance: its class's, or with `owner` that of this base class."""
        return cls(_defining(owner or type(instance), name), name, id(instance))

    @classmethod
    def of_all(cls, owner: Any, name: str) -> Method:
        """The method of a class and of its subclasses that do not have one of their own."""
        if not isinstance(owner, ModuleType):
            owner = _defining(owner, name)
        return cls(owner, name)

    def original(self) -> Any:
        """What stood in the class or module before it was replaced."""
        now = _standing(self.owner, self.name)
        return getattr(now, _ORIGINAL, now)

    def install(self) -> None:
        """Exchanges what stands there, once."""
        original = _standing(self.owner, self.name)
        if hasattr(original, _ORIGINAL):
            return
        if inspect.isfunction(original) or isinstance(self.owner, ModuleType):
            setattr(self.owner, self.name, _dispatching(self, original))
        else:  # such as a tf.function
            setattr(self.owner, self.name, _Dispatching(self, original))


@dataclass(frozen=True)
class Attribute:
    """An attribute of one instance of a class. Reading it calls its replacement with its value.

    If the replacement has a method `assign`, that takes what is assigned, and the instance keeps
    its value.
    """

    owner: type
    name: str
    instance_id: int

    @classmethod
    def of(cls, instance: Any, name: str, owner: type) -> Attribute:
        """The attribute of one instance."""
        return cls(owner, name, id(instance))

    def install(self) -> None:
        """Makes a property of it, once."""
        if not isinstance(vars(self.owner).get(self.name), _AttributeInThread):
            setattr(self.owner, self.name, _AttributeInThread(self.owner, self.name))


# What to call instead. A method's is called with the original and the arguments, an attribute's
# with its value.
Replacements: TypeAlias = dict[Method | Attribute, Callable[..., Any]]

_ORIGINAL = "_gpubalance_original"
_Key: TypeAlias = tuple[Any, str, int | None]


class _Thread(threading.local):
    acting: Mapping[_Key, Callable[..., Any]] = {}


_thread = _Thread()
_always: dict[_Key, Callable[..., Any]] = {}


@contextmanager
def acting(
    replacements: Mapping[Method | Attribute, Callable[..., Any]],
) -> Iterator[None]:
    """Makes these act in this thread inside the block.

    Those that act there already go on, unless one of these replaces the same thing.
    """
    _install(replacements)
    with acting_as({**_thread.acting, **_by_key(replacements)}):
        yield


def acting_here() -> Mapping[_Key, Callable[..., Any]]:
    """What acts in this thread, for `acting_as` in another."""
    return _thread.acting


@contextmanager
def acting_as(other: Mapping[_Key, Callable[..., Any]]) -> Iterator[None]:
    """Inside the block this thread has what `acting_here` gave in the other one, and no more."""
    before = _thread.acting
    _thread.acting = other
    try:
        yield
    finally:
        _thread.acting = before


def unmodified() -> AbstractContextManager[None]:
    """Inside the block nothing acts in this thread, but what acts always."""
    return acting_as({})


def act_always(replacements: Replacements) -> None:
    """Makes these act in every thread from now on, unless a block replaces the same.

    They must not be of one instance.
    """
    _install(replacements)
    _always.update(_by_key(replacements))


def acts_here(target: Method | Attribute) -> bool:
    """Whether a replacement of it acts in this thread."""
    return _key(target) in _thread.acting


def _install(replacements: Iterable[Method | Attribute]) -> None:
    with _installing:
        for target in replacements:
            target.install()


def _by_key(
    replacements: Mapping[Method | Attribute, Callable[..., Any]],
) -> dict[_Key, Callable[..., Any]]:
    return {_key(target): method for target, method in replacements.items()}


def _key(target: Method | Attribute) -> _Key:
    return target.owner, target.name, target.instance_id


def _replacement(owner: Any, name: str, instance: Any) -> Callable[..., Any] | None:
    """What acts in this thread in place of an instance's method or attribute."""
    here = _thread.acting
    return (
        here.get((owner, name, id(instance)))
        or here.get((owner, name, None))
        or _always.get((owner, name, None))
    )


def _defining(kind: type, name: str) -> type:
    """The class in which a class's method of this name stands."""
    return next(owner for owner in kind.__mro__ if name in vars(owner))


def _standing(owner: Any, name: str) -> Any:
    # Not getattr for a class: that would bind what it finds.
    return getattr(owner, name) if isinstance(owner, ModuleType) else vars(owner)[name]


def _dispatching(target: Method, original: Any) -> Any:
    """The function that is called instead of the original one."""
    owner, name = target.owner, target.name

    @functools.wraps(original)
    def dispatching(*arguments: Any, **named: Any) -> Any:
        replacement = _replacement(owner, name, arguments[0] if arguments else None)
        if replacement is None:
            return original(*arguments, **named)
        return replacement(original, *arguments, **named)

    setattr(dispatching, _ORIGINAL, original)
    return dispatching


class _Dispatching:
    """As `_dispatching`, for what is no plain function, such as a `tf.function`.

    Outside of a block reading it gives the original.
    """

    def __init__(self, target: Method, original: Any) -> None:
        self._target = target
        setattr(self, _ORIGINAL, original)

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        original = getattr(self, _ORIGINAL)
        replacement = None
        if instance is not None:
            target = self._target
            replacement = _replacement(target.owner, target.name, instance)
        if replacement is None:
            return original.__get__(instance, kind)
        return functools.partial(replacement, original, instance)


class _AttributeInThread:
    """A property whose value is the instance's own, or in a block what its thread has instead."""

    def __init__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        if instance is None:
            return self
        try:
            value = vars(instance)[self._name]
        except KeyError:
            raise AttributeError(self._name, obj=instance) from None
        replacement = _replacement(self._owner, self._name, instance)
        return value if replacement is None else replacement(value)

    def __set__(self, instance: Any, value: Any) -> None:
        replacement = _replacement(self._owner, self._name, instance)
        assign = getattr(replacement, "assign", None)
        if assign is not None:
            assign(value)
        else:
            vars(instance)[self._name] = value

    def __delete__(self, instance: Any) -> None:
        try:
            del vars(instance)[self._name]
        except KeyError:
            raise AttributeError(self._name, obj=instance) from None
