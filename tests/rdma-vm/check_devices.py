"""Runs inside the guest: compares `mcctl devices` with ibv_devinfo, ibv_devices, rdma and Mooncake's own tool.

    check_devices.py MCCTL [TOPOLOGY_DUMP]
"""
import ipaddress
import json
import re
import subprocess
import sys

MCCTL = sys.argv[1]
DUMP = sys.argv[2] if len(sys.argv) > 2 else None
wrong = []
compared = 0


def run(*args):
    return subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60).stdout


def same(what, ours, theirs):
    global compared
    compared += 1
    if ours != theirs:
        wrong.append(f"{what}: {ours!r} in mcctl, {theirs!r} in the other tool")


def devinfo(text):
    """`ibv_devinfo -v` as {device: {field: value, 'ports': [{field: value, 'gids': {index: (gid, type)}}]}}."""
    devices, at = {}, None
    for line in text.splitlines():
        key, colon, value = line.strip().partition(":")
        value = value.strip()
        if not colon:
            continue
        if key == "hca_id":
            device = at = devices.setdefault(value, {"ports": []})
        elif key == "port":
            at = {"gids": {}, "port": int(value)}
            device["ports"].append(at)
        elif m := re.fullmatch(r"GID\[\s*(\d+)\]", key):
            gid, _, kind = value.partition(", ")
            at["gids"][int(m.group(1))] = (ipaddress.ip_address(gid), kind)
        elif at is not None:
            at.setdefault(key, value)
    return devices


def number(text):
    """The number at the start of a text such as `4096 (5)` or `0x800000`."""
    return int(text.split()[0], 0)


def verbs(moment, report, theirs):
    """Compares the limits and ports that libibverbs reports."""
    same(f"{moment}: verbs", report["missing"], None)
    same(f"{moment}: verbs devices", [d["name"] for d in report["devices"]], list(theirs))
    for ours in report["devices"]:
        name, other = ours["name"], theirs[ours["name"]]
        attributes = ours["attributes"]
        same(f"{moment}: {name} verbs firmware", attributes.pop("fw_ver"), other["fw_ver"])
        same(f"{moment}: {name} limits that ibv_devinfo does not print", sorted(attributes.keys() - other.keys()), [])
        for key in attributes.keys() & other.keys():
            same(f"{moment}: {name} {key}", attributes[key], number(other[key]))
        same(f"{moment}: {name} verbs ports", [p["number"] for p in ours["ports"]], [q["port"] for q in other["ports"]])
        for p, q in zip(ours["ports"], other["ports"]):
            at = f"{moment}: {name}/{p['number']} verbs"
            same(f"{at} state", f"PORT_{p['state']}", q["state"].split()[0])
            same(f"{at} link layer", p["link_layer"], q["link_layer"])
            for ours_key, key in {"lid": "port_lid", "lmc": "port_lmc"}.items():
                same(f"{at} {key}", p[ours_key], number(q[key]))
            for key in ("max_mtu", "active_mtu", "sm_lid", "max_msg_sz", "gid_tbl_len", "pkey_tbl_len", "port_cap_flags"):
                same(f"{at} {key}", p[key], number(q[key]))
            for key in ("active_width", "active_speed", "phys_state"):
                same(f"{at} {key}", f"({p[key]})", q[key].split()[-1])


def compare(moment):
    doc = json.loads(run(MCCTL, "devices", "--json"))
    ours = {d["name"]: d for d in doc["devices"]}
    theirs = devinfo(run("ibv_devinfo", "-v"))
    same(f"{moment}: devices", list(ours), list(theirs))
    for name in ours.keys() & theirs.keys():
        a, b = ours[name], theirs[name]
        same(f"{moment}: {name} node_guid", a["node_guid"], b["node_guid"])
        same(f"{moment}: {name} sys_image_guid", a["system_image_guid"], b["sys_image_guid"])
        # libibverbs writes 0.0.0 if the driver has no version.
        same(f"{moment}: {name} firmware", a["firmware"] or "0.0.0", b["fw_ver"])
        same(f"{moment}: {name} transport", a["transport"], b["transport"].split(" ")[0].lower())
        same(f"{moment}: {name} ports", [p["number"] for p in a["ports"]], [p["port"] for p in b["ports"]])
        for p, q in zip(a["ports"], b["ports"]):
            at = f"{moment}: {name}/{p['number']}"
            same(f"{at} state", f"PORT_{p['state']['name']} ({p['state']['number']})", q["state"])
            same(f"{at} link layer", p["link_layer"], q["link_layer"])
            same(f"{at} lid", p["lid"], int(q["port_lid"]))
            same(f"{at} sm_lid", p["sm_lid"], int(q["sm_lid"]))
            same(f"{at} rows", p["gid_rows"], int(q["gid_tbl_len"]))
            gids = {g["index"]: (ipaddress.ip_address(g["gid"]), g["kind"]) for g in p["gids"]}
            kinds = {"RoCE v2": "roce-v2", "RoCE v1": "roce-v1", "IB/RoCE v1": "roce-v1"}
            same(f"{at} GIDs", gids, {i: (g, kinds.get(k, k)) for i, (g, k) in q["gids"].items()})
    verbs(moment, doc["verbs"], theirs)
    links = {(l["ifname"], l["port"]): l for l in json.loads(run("rdma", "-j", "link"))}
    same(f"{moment}: links", sorted((d["name"], p["number"]) for d in doc["devices"] for p in d["ports"]), sorted(links))
    for (name, number), link in links.items():
        port = next(p for p in ours[name]["ports"] if p["number"] == number)
        same(f"{moment}: {name} link state", port["state"]["name"], link["state"])
        physical = re.sub(r"(?<!^)(?=[A-Z])", "_", port["physical_state"]["name"]).upper()
        same(f"{moment}: {name} physical state", physical, link["physical_state"])
        same(f"{moment}: {name} netdev", ours[name]["netdevs"], [link["netdev"]])
    same(f"{moment}: ibv_devices", run(MCCTL, "devices", "--format", "ibv_devices"), run("ibv_devices"))
    if DUMP:
        ours = f"Local topology [te/discover]: {run(MCCTL, 'devices', '--format', 'topology')}\n"
        same(f"{moment}: topology", ours, run(DUMP))
    return doc


doc = compare("two ports up")
same("devices to use", doc["environment"], {"MOONCAKE_DEVICE": "rxe0,rxe1", "MC_GID_INDEX": "1"})
subprocess.run(["ip", "link", "set", "eth1", "down"], check=True)
doc = compare("both down")
same("findings", {f["id"] for f in doc["findings"]} >= {"port-down"}, True)
same("devices to use when down", doc["choice"]["picked"], [])
for line in wrong:
    print("WRONG", line)
print(f"{compared} values compared, {len(wrong)} wrong")
sys.exit(1 if wrong else 0)
