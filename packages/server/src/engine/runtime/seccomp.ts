// The system calls a sandbox may not make, as a classic BPF program for `bwrap --seccomp`.
//
// A deny-list: Deno needs most of the rest. It closes what namespaces leave open: new processes
// (only threads may be made, so there is no fork bomb), new namespaces, kernel interfaces with a
// history of holes, and socket families that no network namespace confines (AF_VSOCK reaches the
// hypervisor). https://docs.kernel.org/userspace-api/seccomp_filter.html

interface Architecture {
  audit: number;
  clone: number;
  socket: number;
  denied: readonly number[];
}

/** The same numbers everywhere: io_uring_*, the new mount calls, pidfd_open and pidfd_getfd. */
const newCalls = [425, 426, 427, 428, 429, 430, 431, 432, 433, 434, 438, 442] as const;
const clone3 = 435;

const architectures: Partial<Record<string, Architecture>> = {
  // linux/arch/x86/entry/syscalls/syscall_64.tbl
  x64: {
    audit: 0xc000003e,
    clone: 56,
    socket: 41,
    denied: [
      57, 58, 101, 103, 134, 135, 136, 139, 153, 154, 155, 159, 161, 163, 164, 165, 166, 167, 168,
      169, 170, 171, 172, 173, 175, 176, 179, 212, 227, 237, 238, 246, 248, 249, 250, 256, 272, 279,
      298, 300, 303, 304, 305, 308, 310, 311, 312, 313, 317, 320, 321, 323,
    ],
  },
  // linux/include/uapi/asm-generic/unistd.h
  arm64: {
    audit: 0xc00000b7,
    clone: 220,
    socket: 198,
    denied: [
      18, 39, 40, 41, 51, 60, 89, 92, 97, 104, 105, 106, 112, 116, 117, 142, 161, 162, 170, 171,
      217, 218, 219, 224, 225, 235, 237, 238, 239, 241, 262, 264, 265, 266, 268, 270, 271, 272, 273,
      277, 280, 282, 294,
    ],
  },
};

const load = 0x20; // BPF_LD | BPF_W | BPF_ABS
const jumpIfEqual = 0x15;
const jumpIfAtLeast = 0x35;
const jumpIfAnyBit = 0x45;
const answer = 0x06; // BPF_RET

const allow = 0x7fff0000;
const refuse = 0x00050000 | 1; // EPERM
const unknownCall = 0x00050000 | 38; // ENOSYS: glibc then falls back from clone3 to clone
const kill = 0x80000000;

// Offsets in struct seccomp_data (little-endian machines).
const callNumber = 0;
const architecture = 4;
const firstArgument = 16;

const cloneThread = 0x00010000;
const socketFamilies = [1, 2, 10]; // AF_UNIX, AF_INET, AF_INET6
const x32Bit = 0x40000000;

/** The filter for this machine, or undefined where it is not known. */
export function seccompFilter(arch: string = process.arch): Buffer | undefined {
  const machine = architectures[arch];
  if (!machine) return undefined;
  const program: Buffer[] = [];
  const emit = (code: number, k: number, ifTrue = 0, ifFalse = 0) => {
    const instruction = Buffer.alloc(8);
    instruction.writeUInt16LE(code, 0);
    instruction.writeUInt8(ifTrue, 2);
    instruction.writeUInt8(ifFalse, 3);
    instruction.writeUInt32LE(k >>> 0, 4);
    program.push(instruction);
  };

  emit(load, architecture);
  emit(jumpIfEqual, machine.audit, 1, 0);
  emit(answer, kill);
  emit(load, callNumber);
  emit(jumpIfAtLeast, x32Bit, 0, 1);
  emit(answer, refuse);
  for (const call of [...machine.denied, ...newCalls]) {
    emit(jumpIfEqual, call, 0, 1);
    emit(answer, refuse);
  }
  emit(jumpIfEqual, clone3, 0, 1);
  emit(answer, unknownCall);

  // clone makes threads and nothing else.
  emit(jumpIfEqual, machine.clone, 0, 4);
  emit(load, firstArgument);
  emit(jumpIfAnyBit, cloneThread, 1, 0);
  emit(answer, refuse);
  emit(answer, allow);

  emit(jumpIfEqual, machine.socket, 0, socketFamilies.length + 2);
  emit(load, firstArgument);
  socketFamilies.forEach((family, index) => {
    emit(jumpIfEqual, family, socketFamilies.length - index, 0);
  });
  emit(answer, refuse);
  emit(answer, allow);
  return Buffer.concat(program);
}
