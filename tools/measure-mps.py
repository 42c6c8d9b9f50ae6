#!/usr/bin/env python3
"""What MPS really does on a GPU, under the limits that gpufrac sets.

Run as root on a machine with an NVIDIA GPU that nobody else uses, in compute mode DEFAULT:

    python3 tools/measure-mps.py [-o FILE]    # FILE unless given: docs/measured/GPU-DRIVER-DATE.json

It needs the driver (libcuda.so.1), nvidia-cuda-mps-control, and nothing else: the kernels are PTX text.
It starts its own control daemons in a temporary folder and ends what it started. It changes no setting of the GPU:
neither MIG, nor clocks, nor the compute mode; it resets nothing.

Every step has a time limit; a step that fails leaves its error in the results, and the next one runs.
"""

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What was measured is kept here.
MEASURED = Path(__file__).resolve().parents[1] / "docs/measured"

PTX = b"""
.version 6.0
.target sm_70
.address_size 64

// Four chains of multiplications and additions for each thread.
.visible .entry burn(.param .u64 target, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .f32 %f<7>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;

    ld.param.u64 %rd1, [target];
    ld.param.u32 %r1, [rounds];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %tid.x;
    cvt.rn.f32.u32 %f1, %r2;
    mov.f32 %f2, %f1;
    mov.f32 %f3, %f1;
    mov.f32 %f4, %f1;
    mov.f32 %f5, 0f3F7FBE77;
    mov.f32 %f6, 0f3A83126F;
LOOP:
    fma.rn.f32 %f1, %f1, %f5, %f6;
    fma.rn.f32 %f2, %f2, %f6, %f5;
    fma.rn.f32 %f3, %f3, %f5, %f5;
    fma.rn.f32 %f4, %f4, %f6, %f6;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra LOOP;

    add.f32 %f1, %f1, %f2;
    add.f32 %f3, %f3, %f4;
    add.f32 %f1, %f1, %f3;
    st.global.f32 [%rd2], %f1;
    ret;
}

// On which multiprocessor each block runs; the blocks last long enough to fill all of them.
.visible .entry place(.param .u64 target, .param .u32 rounds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [target];
    ld.param.u32 %r1, [rounds];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %smid;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd2, %rd3;
WAIT:
    st.volatile.global.u32 [%rd4], %r3;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra WAIT;
    ret;
}

// A store where no memory is.
.visible .entry fault(.param .u64 target)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;

    ld.param.u64 %rd1, [target];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0"""

MIB = 1 << 20
# Of CUdevice_attribute.
MULTIPROCESSORS, COMPUTE_MODE, MAJOR, MINOR = 16, 20, 75, 76
BLOCKS, THREADS, ROUNDS = 2048, 256, 20_000
OPERATIONS = BLOCKS * THREADS * ROUNDS * 4 * 2
NO_SUCH_GPU = "GPU-00000000-0000-0000-0000-000000000000"
OTHER_USER = 65534


# ---------------------------------------------------------------------------------------------------------
# A client: a process of its own that does what it is told, one JSON object a line.


class CudaError(Exception):
    def __init__(self, call, code, name):
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name = call, code, name


class Cuda:
    """The driver API, as far as it is needed. Signatures: cuda.h."""

    I, U, Z, P, D = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
    to = ctypes.POINTER
    SIGNATURES = {
        "cuInit": [U],
        "cuDriverGetVersion": [to(I)],
        "cuDeviceGetCount": [to(I)],
        "cuDeviceGet": [to(I), I],
        "cuDeviceGetName": [ctypes.c_char_p, I, I],
        "cuDeviceGetUuid": [ctypes.c_char_p, I],
        "cuDeviceTotalMem_v2": [to(Z), I],
        "cuDeviceGetAttribute": [to(I), I, I],
        "cuCtxCreate_v2": [to(P), U, I],
        "cuCtxSynchronize": [],
        "cuCtxGetExecAffinity": [P, I],
        "cuModuleLoadData": [to(P), ctypes.c_char_p],
        "cuModuleGetFunction": [to(P), P, ctypes.c_char_p],
        "cuLaunchKernel": [P, U, U, U, U, U, U, U, P, to(P), to(P)],
        "cuMemGetInfo_v2": [to(Z), to(Z)],
        "cuMemAlloc_v2": [to(D), Z],
        "cuMemFree_v2": [D],
        "cuMemcpyDtoH_v2": [P, D, Z],
    }
    del I, U, Z, P, D, to

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.cuGetErrorName.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        self.library.cuGetErrorName.restype = ctypes.c_int

    def __getattr__(self, call):
        function = getattr(self.library, call)
        function.argtypes = self.SIGNATURES[call]
        function.restype = ctypes.c_int

        def checked(*args):
            code = function(*args)
            if code:
                name = ctypes.c_char_p()
                self.library.cuGetErrorName(code, ctypes.byref(name))
                raise CudaError(call, code, (name.value or b"unknown").decode())

        setattr(self, call, checked)
        return checked

    def number(self, call, *args, kind=ctypes.c_int):
        """What a call leaves behind its first argument."""
        value = kind()
        getattr(self, call)(ctypes.byref(value), *args)
        return value.value


class Worker:
    def __init__(self):
        self.cuda = None

    def init(self, context=True):
        """Without a context nothing is asked of the GPU's memory, but MPS is connected to."""
        cuda = self.cuda = Cuda()
        start = time.monotonic()
        cuda.cuInit(0)
        count = cuda.number("cuDeviceGetCount")
        if count == 0:
            raise CudaError("cuDeviceGetCount", 100, "no device")
        self.device = device = cuda.number("cuDeviceGet", 0)
        name, uuid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
        cuda.cuDeviceGetName(name, 256, device)
        cuda.cuDeviceGetUuid(uuid, device)
        digits = uuid.raw.hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        attribute = lambda which: cuda.number("cuDeviceGetAttribute", which, device)
        found = {
            "devices": count,
            "gpu": name.value.decode(),
            "uuid": "GPU-" + "-".join(parts),
            "cuda": cuda.number("cuDriverGetVersion"),
            "compute_capability": f"{attribute(MAJOR)}.{attribute(MINOR)}",
            "compute_mode": attribute(COMPUTE_MODE),
            "total_mib": cuda.number("cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t) // MIB,
            "sm_attribute": attribute(MULTIPROCESSORS),
        }
        if context:
            self.context = cuda.number("cuCtxCreate_v2", 0, device, kind=ctypes.c_void_p)
            found["start_seconds"] = round(time.monotonic() - start, 3)
            found["sm_attribute_in_context"] = attribute(MULTIPROCESSORS)
            found["sm_context"] = self.affinity()
            module = cuda.number("cuModuleLoadData", PTX, kind=ctypes.c_void_p)
            function = lambda name: cuda.number("cuModuleGetFunction", module, name, kind=ctypes.c_void_p)
            self.kernels = {name: function(name.encode()) for name in ("burn", "place", "fault")}
            self.place = cuda.number("cuMemAlloc_v2", 4 * BLOCKS, kind=ctypes.c_uint64)
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            found["free_mib"], found["info_total_mib"] = free.value // MIB, total.value // MIB
        return found

    def affinity(self):
        """What the context says of its multiprocessors (CU_EXEC_AFFINITY_TYPE_SM_COUNT)."""
        # Longer than the structure of any version: a number for the kind, then a union.
        value = (ctypes.c_uint * 16)()
        try:
            self.cuda.cuCtxGetExecAffinity(value, 0)
        except (CudaError, AttributeError) as error:
            return str(error)
        return value[1]

    def launch(self, kernel, *args, blocks=BLOCKS, threads=THREADS):
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(arg) for arg in args))
        self.cuda.cuLaunchKernel(
            self.kernels[kernel], blocks, 1, 1, threads, 1, 1, 0, None, pointers, None
        )

    def used(self):
        """On how many multiprocessors blocks really ran."""
        self.launch("place", ctypes.c_uint64(self.place), ctypes.c_uint32(2000), threads=32)
        self.cuda.cuCtxSynchronize()
        places = (ctypes.c_uint32 * BLOCKS)()
        self.cuda.cuMemcpyDtoH_v2(places, self.place, 4 * BLOCKS)
        return {"sm_used": len(set(places))}

    def largest(self):
        """The largest allocation that succeeds, to 2 MiB, and how much is had in pieces. Freed at once."""
        total = self.cuda.number("cuDeviceTotalMem_v2", self.device, kind=ctypes.c_size_t)
        low, high = 0, total // (2 * MIB) + 1
        while high - low > 1:
            middle = (low + high) // 2
            memory = self.allocate(middle * 2 * MIB)
            if memory is None:
                high = middle
            else:
                low = middle
                self.cuda.cuMemFree_v2(memory)
        pieces, held, size = [], 0, 1024 * MIB
        while size >= 2 * MIB:
            # More than the card has would be another thing than what is measured here.
            memory = self.allocate(size) if held + size <= total else None
            if memory is None:
                size //= 2
            else:
                pieces.append(memory)
                held += size
        for memory in pieces:
            self.cuda.cuMemFree_v2(memory)
        return {"largest_mib": low * 2, "in_pieces_mib": held // MIB}

    def allocate(self, size):
        try:
            return self.cuda.number("cuMemAlloc_v2", size, kind=ctypes.c_uint64)
        except CudaError as error:
            if error.code == 2:
                return None
            raise

    def compute(self, seconds, at=None):
        """Kernels of equal work, one after the other, from the moment `at`. Ends at the first error."""
        place, rounds = ctypes.c_uint64(self.place), ctypes.c_uint32(ROUNDS)
        if at is None:
            # The first launch loads the code.
            self.launch("burn", place, rounds)
            self.cuda.cuCtxSynchronize()
        else:
            time.sleep(max(0.0, at - time.monotonic()))
        start, done = time.monotonic(), 0
        try:
            while time.monotonic() - start < seconds:
                for _ in range(4):
                    self.launch("burn", place, rounds)
                self.cuda.cuCtxSynchronize()
                done += 4
        except CudaError as error:
            return failure(error) | {
                "after_seconds": round(time.monotonic() - start, 2),
                "launches": done,
            }
        took = time.monotonic() - start
        return {
            "launches": done,
            "seconds": round(took, 3),
            "tflops": round(done * OPERATIONS / took / 1e12, 3),
        }

    def fault(self):
        self.launch("fault", ctypes.c_uint64(0x1000), blocks=1, threads=1)
        self.cuda.cuCtxSynchronize()
        return {"no_error": True}

    def alive(self):
        """Whether the context still works."""
        self.launch("burn", ctypes.c_uint64(self.place), ctypes.c_uint32(10))
        self.cuda.cuCtxSynchronize()
        return {"works": True}


def failure(error):
    if isinstance(error, CudaError):
        return {"error": error.name, "code": error.code, "call": error.call}
    return {"error": f"{type(error).__name__}: {error}"}


def be_client(uid):
    prctl = ctypes.CDLL(None).prctl
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        # As a program that was started by this user.
        prctl(4, 1, 0, 0, 0)
    # No client outlives the one who measures.
    prctl(1, signal.SIGKILL, 0, 0, 0)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            answer = failure(error)
        print(json.dumps(answer), flush=True)


# ---------------------------------------------------------------------------------------------------------
# The one who measures. It makes no CUDA call itself.


class OutOfTime(Exception):
    pass


class Client:
    """One client process and what it was told last."""

    every = []

    def __init__(self, folder, environment, uid=0):
        self.error_file = folder / f"client-{len(Client.every)}.stderr"
        with open(self.error_file, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-u", os.path.abspath(__file__), "--be-client", str(uid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self.pid, self.buffer = self.process.pid, b""
        Client.every.append(self)

    def tell(self, do, **arguments):
        line = json.dumps({"do": do, **arguments}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def answer(self, limit=30.0):
        deadline = time.monotonic() + limit
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                return {"error": f"no answer in {limit:.0f} s"}
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    return {"error": "the client died: " + self.end()}
                self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def ask(self, do, limit=30.0, **arguments):
        self.tell(do, **arguments)
        return self.answer(limit)

    def kill(self):
        self.process.kill()

    def end(self):
        """Ends it, and says how it ended."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            try:
                status = self.process.wait(5)
            except subprocess.TimeoutExpired:
                return "it does not die"
        words = f"signal {-status}" if status < 0 else f"status {status}"
        return f"{words} {tail(self.error_file)}".strip()

    @classmethod
    def end_all(cls):
        for client in cls.every:
            if client.process.poll() is None:
                client.end()
            client.process.stdout.close()
        cls.every.clear()


def tail(path, length=1500):
    """The end of a file; never of a fifo, which would wait for a writer."""
    if not path.is_file():
        return ""
    return path.read_text(errors="replace")[-length:].strip()


class Daemon:
    """A control daemon with a folder of its own, started and told its limits as gpufrac does."""

    def __init__(self, control, folder, uuid, flags):
        self.control, self.folder, self.flags = control, folder, flags
        self.pipe, self.log = folder / "pipe", folder / "log"
        for place in (folder, self.pipe, self.log):
            place.mkdir()
            # Another user must be able to connect.
            place.chmod(0o755)
        self.uuid = uuid

    def environment(self):
        programs = Path(self.control).parent
        path = f"{programs}:{programs.parent / 'sbin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {
            "PATH": path,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
        }
        if "LD_LIBRARY_PATH" in os.environ:
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        return environment

    def run(self, arguments, commands="", limit=5.0, **more):
        # Files, as a daemon that stays would hold pipes open.
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [self.control, *arguments],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                env=self.environment() | more,
            )
            start = time.monotonic()
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(commands.encode())
                    process.stdin.close()
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = f"no end in {limit:.0f} s"
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait(5)
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
        return {"status": status, "text": text, "seconds": round(time.monotonic() - start, 3)}

    def start(self):
        done = self.run([*self.flags, "-d"], CUDA_VISIBLE_DEVICES=self.uuid)
        if done["status"] != 0:
            raise RuntimeError(f"{' '.join([*self.flags, '-d'])}: {done} {self.logs()}")
        return done

    def ask(self, command, limit=5.0):
        done = self.run([], command + "\n", limit)
        return done["text"] if done["status"] == 0 else f"{done['status']}: {done['text']}"

    def limit(self, percentage, memory):
        self.ask(f"set_default_active_thread_percentage {percentage}")
        self.ask(f"set_default_device_pinned_mem_limit 0 {memory}M")
        return {
            "thread_percentage": self.ask("get_default_active_thread_percentage"),
            "memory": self.ask("get_default_device_pinned_mem_limit 0"),
        }

    def servers(self):
        return [int(word) for word in self.ask("get_server_list").split() if word.isdigit()]

    def state(self):
        return {
            "servers": {
                pid: {
                    "status": self.ask(f"get_server_status {pid}"),
                    "clients": self.ask(f"get_client_list {pid}").split(),
                }
                for pid in self.servers()
            },
            "ps": self.ask("ps"),
        }

    def processes(self):
        """Pids of the daemon and its servers, by the folder in their environment; clients have it too."""
        mark = f"CUDA_MPS_PIPE_DIRECTORY={self.pipe}".encode()
        found = {"daemon": [], "servers": []}
        for place in Path("/proc").iterdir():
            if not place.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if not (place / "comm").read_bytes().startswith(b"nvidia-cuda-mps"):
                    continue
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    server = b"-server" in (place / "cmdline").read_bytes().split(b"\0")[0]
                    found["servers" if server else "daemon"].append(int(place.name))
        return found

    def logs(self):
        return {name: tail(self.log / name) for name in ("control.log", "server.log")}

    def end(self):
        """By its command, then by pid."""
        if self.processes()["daemon"]:
            self.run([], "quit -t 1\n", 8.0)
        for _ in range(30):
            found = self.processes()
            pids = found["daemon"] + found["servers"]
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


class Measurement:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.deadline = time.monotonic() + arguments.limit
        self.results = {"date": datetime.date.today().isoformat(), "steps": {}}
        self.daemons = 0
        # None until there is something to write.
        self.path = None

    # --- steps and results

    def step(self, name, work, limit=60):
        left = int(self.deadline - time.monotonic())
        if left < 5:
            self.results["steps"][name] = {"not_run": "the time limit of the whole was reached"}
            return self.save()
        record = self.results["steps"][name] = {}
        print(f"{name} ...", flush=True)
        start = time.monotonic()
        signal.alarm(min(limit, left))
        try:
            work(record)
        except OutOfTime:
            record["error"] = f"not done in {min(limit, left)} s"
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
            Client.end_all()
        record["step_seconds"] = round(time.monotonic() - start, 1)
        self.save()

    def save(self):
        if self.path:
            partial = self.path.with_name(self.path.name + ".partial")
            partial.write_text(json.dumps(self.results, indent=1) + "\n")
            partial.replace(self.path)

    # --- clients and daemons

    def outside(self, uid=0):
        """A client that knows nothing of MPS."""
        keep = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG")
        environment = {name: os.environ[name] for name in keep if name in os.environ}
        visible = self.results.get("uuid", str(self.arguments.gpu))
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = visible
        return Client(self.folder, environment, uid)

    def client(self, daemon, percent=None, uid=0, **more):
        """A client with the variables of a job that holds so many percent; without a number, with those of the
        folders alone."""
        keep = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG")
        environment = {name: os.environ[name] for name in keep if name in os.environ}
        environment |= {
            "CUDA_VISIBLE_DEVICES": self.results["uuid"],
            "CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(daemon.log),
        }
        if percent is not None:
            environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={self.share(percent)}M"
            environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
        return Client(self.folder, environment | more, uid)

    def share(self, percent):
        return self.results["total_mib"] * percent // 100

    @contextlib.contextmanager
    def daemon(self, record, flags, percent=50):
        """A daemon whose limits are those of the largest share."""
        self.daemons += 1
        folder = self.folder / f"mps-{self.daemons}"
        daemon = Daemon(self.arguments.control, folder, self.results["uuid"], flags)
        try:
            record["start"] = daemon.start()
            record["limits"] = daemon.limit(percent, self.share(percent))
            yield daemon
        except Exception:
            record["logs"] = daemon.logs()
            raise
        finally:
            # The limit of the step may have come; ending has its own limits.
            signal.alarm(0)
            Client.end_all()
            daemon.end()

    @staticmethod
    def sees(client):
        """What a new client has, or the first error that it met."""
        found = {}
        for do in ("init", "used", "largest"):
            found |= client.ask(do, 60 if do == "largest" else 30)
            if "error" in found:
                break
        return found

    def at_once(self, record, clients):
        """All of them compute from the same moment."""
        seconds = self.arguments.seconds
        at = time.monotonic() + 0.5
        for client in clients.values():
            client.tell("compute", seconds=seconds, at=at)
        for name, client in clients.items():
            record[name] = client.answer(seconds + 30)

    # --- the steps: without MPS

    def device(self, record):
        client = self.outside()
        record |= self.sees(client)
        if "error" not in record:
            record["alone"] = client.ask("compute", seconds=self.arguments.seconds)

    def timesliced(self, record):
        clients = {"first": self.outside(), "second": self.outside()}
        for client in clients.values():
            client.ask("init")
            client.ask("compute", seconds=0.1)
        self.at_once(record, clients)

    def mig_tables(self, record):
        program = shutil.which("nvidia-smi")
        if not program:
            record["error"] = "no nvidia-smi"
            return
        for table in ("-lgip", "-lgipp"):
            done = subprocess.run(
                [program, "mig", "-i", self.results["uuid"], table],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=20,
            )
            record[table] = {"status": done.returncode, "text": done.stdout + done.stderr}

    # --- the steps: with MPS

    def shares(self, record, flags):
        """Two clients within their shares, and those who want more."""
        with self.daemon(record, flags) as daemon:
            clients = {}
            for name, percent in (("quarter", 25), ("half", 50)):
                client = clients[name] = self.client(daemon, percent)
                found = record[name] = self.sees(client)
                found["asked"] = {"percent": percent, "mib": self.share(percent)}
                found["alone"] = client.ask("compute", seconds=self.arguments.seconds)
            record["state"] = daemon.state()
            both = record["at_once"] = {}
            self.at_once(both, clients)

    def others(self, record, flags):
        total = self.results["total_mib"]
        with self.daemon(record, flags) as daemon:
            for name, client in {
                "no_limits_of_its_own": lambda: self.client(daemon),
                "raised_its_limits": lambda: self.client(
                    daemon,
                    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100",
                    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"0={total}M",
                ),
                "limit_for_ordinal_1": lambda: self.client(
                    daemon, 25, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="1=1024M"
                ),
                "limit_for_another_uuid": lambda: self.client(
                    daemon, 25, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"{NO_SUCH_GPU}=1024M"
                ),
                "limit_that_is_no_limit": lambda: self.client(
                    daemon, 25, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="nonsense"
                ),
                "by_ordinal": lambda: self.client(daemon, 25, CUDA_VISIBLE_DEVICES="0"),
                "outside": self.outside,
            }.items():
                client = client()
                found = record[name] = self.sees(client)
                servers = daemon.state()["servers"].values()
                found["is_client"] = any(str(client.pid) in server["clients"] for server in servers)
                client.end()

    def raised_at_run_time(self, record, flags):
        """Limits that are raised while a server runs reach its new clients only by the commands for servers."""
        with self.daemon(record, flags, 25) as daemon:
            first = self.client(daemon, 25)
            record["first"] = self.sees(first)
            record["new_limits"] = daemon.limit(50, self.share(50))
            second = self.client(daemon, 50)
            record["defaults_only"] = self.sees(second)
            second.end()
            for pid in daemon.servers():
                memory = self.share(50)
                record["told_server"] = [
                    daemon.ask(f"set_active_thread_percentage {pid} 50"),
                    daemon.ask(f"set_device_pinned_mem_limit {pid} 0 {memory}M"),
                ]
            third = self.client(daemon, 50)
            record["server_told"] = self.sees(third)
            record["first_after"] = first.ask("used") | first.ask("largest", 60)

    def other_user(self, record, flags):
        with self.daemon(record, flags) as daemon:
            root = self.client(daemon, 25)
            record["root"] = root.ask("init")
            user = self.client(daemon, 50, uid=OTHER_USER)
            user.tell("init")
            found = record["other_user_beside"] = user.answer(10)
            record["state"] = daemon.state()
            root.end()
            if "no answer" in found.get("error", ""):
                record["other_user_after"] = user.answer(15)
                record["state_after"] = daemon.state()

    def computing(self, daemon, record):
        """Two clients that compute for long."""
        clients = {"victim": self.client(daemon, 25), "neighbour": self.client(daemon, 50)}
        for name, client in clients.items():
            record[name] = client.ask("init")
            client.tell("compute", seconds=6)
        time.sleep(2)
        return clients["victim"], clients["neighbour"]

    def aftermath(self, daemon, record, victim, neighbour):
        """What both say, and whether a new client can start, with them and after them."""
        record["victim_computing"] = victim.answer(20)
        record["neighbour_computing"] = neighbour.answer(20)
        record["neighbour_after"] = neighbour.ask("alive")
        record["state_after"] = daemon.state()
        newcomer = self.client(daemon, 25)
        record["newcomer"] = newcomer.ask("init", 10)
        newcomer.end()
        record["victim_end"], record["neighbour_end"] = victim.end(), neighbour.end()
        record["state_when_alone"] = daemon.state()
        newcomer = self.client(daemon, 25)
        record["newcomer_when_alone"] = newcomer.ask("init", 15)
        record["processes"] = daemon.processes()

    def fault(self, record, flags):
        with self.daemon(record, flags) as daemon:
            victim, neighbour = self.client(daemon, 25), self.client(daemon, 50)
            record["victim"], record["neighbour"] = victim.ask("init"), neighbour.ask("init")
            neighbour.tell("compute", seconds=4)
            time.sleep(1)
            victim.tell("fault")
            time.sleep(1)
            record["state_at_fault"] = daemon.state()
            self.aftermath(daemon, record, victim, neighbour)

    def terminate(self, record, flags):
        with self.daemon(record, flags) as daemon:
            victim, neighbour = self.computing(daemon, record)
            servers = daemon.servers()
            record["said"] = [daemon.ask(f"terminate_client {pid} {victim.pid}") for pid in servers]
            self.aftermath(daemon, record, victim, neighbour)

    def killed_client(self, record, flags):
        with self.daemon(record, flags) as daemon:
            victim, neighbour = self.computing(daemon, record)
            victim.kill()
            self.aftermath(daemon, record, victim, neighbour)

    def shut_down(self, record, flags):
        with self.daemon(record, flags) as daemon:
            victim, neighbour = self.computing(daemon, record)
            servers = daemon.servers()
            record["said"] = [daemon.ask(f"shutdown_server {pid} -f") for pid in servers]
            self.aftermath(daemon, record, victim, neighbour)

    def killed_daemon(self, record, flags):
        with self.daemon(record, flags) as daemon:
            victim, neighbour = self.computing(daemon, record)
            before = record["before"] = daemon.processes()
            for pid in before["daemon"]:
                os.kill(pid, signal.SIGKILL)
            time.sleep(1)
            record["after_kill"] = daemon.processes()
            self.aftermath(daemon, record, victim, neighbour)

    def quit_with_clients(self, record, flags):
        with self.daemon(record, flags) as daemon:
            victim, neighbour = self.computing(daemon, record)
            record["quit"] = daemon.run([], "quit -t 1\n", 10.0)
            record["after_quit"] = daemon.processes()
            self.aftermath(daemon, record, victim, neighbour)

    def patient_quit(self, record, flags):
        """Without `-t` it may wait for the clients."""
        with self.daemon(record, flags) as daemon:
            victim, neighbour = self.computing(daemon, record)
            record["quit"] = daemon.run([], "quit\n", 10.0)
            record["after_quit"] = daemon.processes()
            self.aftermath(daemon, record, victim, neighbour)

    def all(self):
        self.step("device", self.device, 90)
        device = self.results["steps"]["device"]
        if "uuid" not in device:
            reason = device.get("error", "no answer")
            sys.exit(f"no GPU that CUDA can use: {reason}\nnothing was measured")
        if device["compute_mode"] != 0:
            sys.exit(
                f"the GPU is in compute mode {device['compute_mode']} and not in DEFAULT (0); "
                "nothing was measured, and the mode is left as it is"
            )
        for name in ("uuid", "gpu", "total_mib", "cuda", "compute_capability"):
            self.results[name] = device[name]
        self.results["driver"] = driver_version()
        self.results["other_daemon_at_default_place"] = Path("/tmp/nvidia-mps/control").exists()
        self.path = self.arguments.output
        if self.path is None:
            words = [self.results["gpu"], self.results["driver"], self.results["date"]]
            name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words))
            self.path = MEASURED / f"{name}.json"
        self.save()
        self.step("mig_tables", self.mig_tables)
        self.step("timesliced", self.timesliced)
        if self.arguments.control is None:
            self.results["steps"]["mps"] = {"not_run": "no nvidia-cuda-mps-control"}
            self.save()
            return
        for mode, flags in (("multiuser", ["-multiuser-server"]), ("plain", [])):
            for work in (
                self.shares,
                self.others,
                self.raised_at_run_time,
                self.other_user,
                self.fault,
                self.terminate,
                self.killed_client,
                self.shut_down,
                self.killed_daemon,
                self.quit_with_clients,
                self.patient_quit,
            ):
                name = f"{mode}/{work.__name__}"
                self.step(name, lambda record: work(record, flags), 90)


def driver_version():
    with contextlib.suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text()
        if found := re.search(r"\b\d+\.\d+(\.\d+)?\b", text):
            return found.group()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        options = ["--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=20)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    return "unknown"


# ---------------------------------------------------------------------------------------------------------
# The table.


def table(results):
    steps = results["steps"]
    device = steps["device"]
    whole = device.get("alone", {}).get("tflops")
    lines = [
        f"{results['gpu']}, driver {results['driver']}, {results['date']}, {results['total_mib']} MiB",
        "",
        f"{'client':<38} {'SM: attr':>8} {'ctx':>6} {'used':>5} {'MiB most':>9} {'TFLOP/s':>8} {'at once':>8} {'ratio':>6}",
    ]

    def row(name, found, together=None):
        if "error" in found and "sm_attribute" not in found:
            lines.append(f"{name:<38} {found['error']}")
            return
        alone = found.get("alone", {}).get("tflops")
        beside = (together or {}).get("tflops")
        context = found.get("sm_context", "")
        ratio = f"{beside / alone:.2f}" if alone and beside else ""
        lines.append(
            f"{name:<38} {found.get('sm_attribute_in_context', ''):>8} "
            f"{context if isinstance(context, int) else '-':>6} {found.get('sm_used', ''):>5} "
            f"{found.get('largest_mib', ''):>9} {alone or '':>8} {beside or '':>8} {ratio:>6}"
        )

    row("without MPS", device)
    for name in ("first", "second"):
        found = steps.get("timesliced", {}).get(name, {})
        row(f"without MPS, beside another: {name}", {"alone": {"tflops": whole}}, found)
    for mode in ("multiuser", "plain"):
        shares = steps.get(f"{mode}/shares", {})
        for name in ("quarter", "half"):
            if name in shares:
                row(f"{mode}, {name}", shares[name], shares.get("at_once", {}).get(name))
        for name, found in steps.get(f"{mode}/others", {}).items():
            if isinstance(found, dict) and ("sm_attribute" in found or "code" in found):
                row(f"{mode}, {name}", found)
    said = lambda found: found.get("error") or ("works" if found else "-")
    lines.append(f"\n{'what happened':<32} {'victim':<30} {'neighbour':<30} {'new client':<30} when alone")
    for name, record in steps.items():
        if "victim_computing" in record:
            words = [
                said(record.get(key, {}))
                for key in ("victim_computing", "neighbour_after", "newcomer", "newcomer_when_alone")
            ]
            words = [word.removeprefix("CUDA_ERROR_").splitlines()[0][:29] for word in words]
            lines.append(f"{name:<32} {words[0]:<30} {words[1]:<30} {words[2]:<30} {words[3]}")
    for name, record in steps.items():
        for key in ("error", "not_run"):
            if key in record:
                lines.append(f"{name}: {record[key]}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="where the results go (docs/measured/GPU-DRIVER-DATE.json)")
    parser.add_argument("--gpu", type=int, default=0, help="which GPU, by nvidia-smi's number")
    parser.add_argument("--control", default=shutil.which("nvidia-cuda-mps-control"), help="nvidia-cuda-mps-control")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each throughput is measured")
    parser.add_argument("--limit", type=int, default=540, help="seconds for all of it; what is left over is not run")
    parser.add_argument("--be-client", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_client is not None:
        return be_client(arguments.be_client)
    if arguments.control:
        arguments.control = os.path.abspath(arguments.control)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"no GPU here: the driver's library cannot be loaded ({error})\nnothing was measured")
    if os.geteuid() != 0:
        sys.exit("root is needed: another user's client is one of the things measured")

    def out_of_time(*_):
        raise OutOfTime

    def stop(*_):
        sys.exit("ended by a signal")

    signal.signal(signal.SIGALRM, out_of_time)
    signal.signal(signal.SIGTERM, stop)
    folder = Path(tempfile.mkdtemp(prefix="gpufrac-mps-"))
    # The other user's client goes through it.
    folder.chmod(0o711)
    measurement = Measurement(arguments, folder)
    try:
        measurement.all()
    finally:
        signal.alarm(0)
        Client.end_all()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{table(measurement.results)}\n\nresults: {measurement.path}")
    return None


if __name__ == "__main__":
    main()
