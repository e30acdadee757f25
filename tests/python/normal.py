"""Turns the outcome of a call into JSON that does not depend on the run: addresses, ports, times and task ids have
fixed names.
"""

import re

KEY = re.compile(r"methods-[0-9a-f]+-")
ENDPOINT = re.compile(r"127\.0\.0\.1:\d+")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b\d{10,20}-\d{10,20}\b")


def text(value):
    value = KEY.sub("", value)
    value = ENDPOINT.sub("HOST:PORT", value)
    value = UUID.sub("UUID", value)
    return re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", value)


def normal(value, depth=0):
    """A JSON value for `value`. Tensors are given with dtype, shape and elements, handles with their bytes."""
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and kind == "int":
        return "ADDRESS" if value >= 1 << 32 else value
    if isinstance(value, str) and kind == "str":
        return text(value)
    if isinstance(value, (bytes, bytearray, memoryview)) and type(value).__name__ != "BufferHandle":
        raw = bytes(value)
        return {"bytes": len(raw), "start": raw[:16].hex()}
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(one, int) for one in value)
        and max(value) >= 1 << 32
    ):
        return "UUID"
    if isinstance(value, (list, tuple)):
        items = [normal(one, depth + 1) for one in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        return {
            text(str(key)): normal(one, depth + 1) for key, one in sorted(value.items(), key=lambda item: str(item[0]))
        }
    if kind == "Tensor":
        return {"tensor": str(value.dtype), "shape": list(value.shape), "values": value.float().flatten().tolist()[:16]}
    if kind == "BufferHandle":
        return {"BufferHandle": normal(bytes(value)), "size": value.size()}
    if kind == "PyCapsule":
        return "PyCapsule"
    name = getattr(value, "name", None)
    if isinstance(name, str) and hasattr(value, "value"):
        return f"{kind}.{name}"
    if depth > 4:
        return kind
    fields = {}
    for name in sorted(dir(type(value))):
        if name.startswith("_"):
            continue
        try:
            field = getattr(value, name)
        except Exception as error:
            fields[name] = {"raises": type(error).__name__}
            continue
        if not callable(field):
            fields[name] = "TIME" if name.endswith("_ms_epoch") else normal(field, depth + 1)
        elif name.startswith("is_") or name in ("get_memory_descriptor", "get_disk_descriptor"):
            fields[name] = outcome(field, depth=depth + 1)
    return {kind: fields}


def outcome(call, *args, depth=0, **keywords):
    """{"returns": value} or {"raises": type, "message": first line}."""
    try:
        return {"returns": normal(call(*args, **keywords), depth)}
    except Exception as error:
        return {"raises": type(error).__name__, "message": text(str(error).splitlines()[0] if str(error) else "")[:200]}
