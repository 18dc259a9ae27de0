"""Which public methods of the Python SDK the tests in this folder call.

A Surface wraps every public method of the SDK's client classes; missing() lists those that nothing here
has called. A call that one method of the SDK makes to another does not count.
"""
import functools, inspect, os, sys

import tinker
from tinker.lib.public_interfaces.rest_client import RestClient

HERE = os.path.dirname(os.path.abspath(__file__))


def client_classes():
    """The classes a user holds: what the package offers whose code lies in public_interfaces. An abstract
    one (APIFuture) stands for those that implement it."""
    found = {"RestClient": RestClient}  # not offered by name in older releases
    for name in dir(tinker):  # some are imported when they are first asked for
        value = getattr(tinker, name)
        if not inspect.isclass(value):
            continue
        code = [f.__code__.co_filename for f in vars(value).values() if inspect.isfunction(f)]
        if not any("public_interfaces" in where for where in code):
            continue
        for cls in value.__subclasses__() if inspect.isabstract(value) else [value]:
            if not cls.__name__.startswith("_"):
                found[cls.__name__] = cls
    assert {"ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AwaitableConcurrentFuture"} <= set(found), found
    return found


def public_methods(cls):
    return [name for name, member in inspect.getmembers_static(cls)
            if not name.startswith("_") and (callable(member) or isinstance(member, (staticmethod, classmethod, property)))]


class Surface:
    def __init__(self):
        self.called, self.all = set(), set()
        for cls_name, cls in client_classes().items():
            for name in public_methods(cls):
                self.all.add(f"{cls_name}.{name}")
                self.wrap(cls, cls_name, name)

    def wrap(self, cls, cls_name, name):
        member = inspect.getattr_static(cls, name)
        full = f"{cls_name}.{name}"

        def note():
            if os.path.dirname(os.path.abspath(sys._getframe(2).f_code.co_filename)) == HERE:
                self.called.add(full)

        def watched(f):
            @functools.wraps(f)
            def call(*args, **kwargs):
                note()
                return f(*args, **kwargs)
            return call

        if isinstance(member, property):
            setattr(cls, name, property(watched(member.fget)))
        elif isinstance(member, (staticmethod, classmethod)):
            setattr(cls, name, type(member)(watched(member.__func__)))
        else:
            setattr(cls, name, watched(member))

    def missing(self, excused):
        """Methods neither called nor excused, and excuses for methods that were called after all."""
        return sorted(self.all - self.called - set(excused)), sorted(set(excused) & self.called)
