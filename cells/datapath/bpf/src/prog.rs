//! Loaded programs: their properties in the kernel, pins, and test runs on a packet.
#![expect(unsafe_code, reason = "a test run takes pointers to packets")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{Error, Result};
use crate::map::bytes_of;
use crate::object::load_instructions;
use crate::probe::instruction;
use crate::sys::{self, Command, RawProgInfo, TestRunAttr};

/// `BPF_PROG_TYPE_SCHED_CLS`.
const SCHED_CLS: u32 = 3;

/// The kernel's information about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// The kernel's id.
    pub id: u32,
    /// The kernel's name: the first 15 bytes of the full one.
    pub name: String,
    /// Instructions that the verifier processed.
    pub verified_instructions: u32,
    /// Bytes of machine code.
    pub jited_bytes: u32,
    /// Bytes of translated instructions.
    pub translated_bytes: u32,
    /// Total run time in nanoseconds, counted only with `kernel.bpf_stats_enabled`.
    pub run_time_ns: u64,
    /// Number of runs, counted under the same condition.
    pub run_count: u64,
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value.
    pub verdict: i32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// The context after the run; empty if the run had none.
    pub context: Vec<u8>,
    /// Nanoseconds of one run, on average.
    pub duration_ns: u32,
}

/// A loaded program. It stays while a descriptor, a pin, a link, a filter or a program array holds it.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
    attach_type: u32,
}

impl Program {
    pub(crate) fn from_fd(fd: OwnedFd, name: &str) -> Program {
        Program { fd, name: name.to_owned(), attach_type: 0 }
    }

    /// Sets the hook that the program was loaded for (`enum bpf_attach_type`).
    pub(crate) fn with_attach_type(self, attach_type: u32) -> Program {
        Program { attach_type, ..self }
    }

    pub(crate) fn attach_type(&self) -> u32 {
        self.attach_type
    }

    /// Loads a tc program from ready instructions (`struct bpf_insn` as eight bytes in memory order): probes, tests.
    pub fn from_instructions(name: &str, instructions: &[u64]) -> Result<Program> {
        let (log, result) = load_instructions(name, instructions);
        result.map(|fd| Program::from_fd(fd, name)).map_err(|source| Error::Verifier {
            program: name.to_owned(),
            log,
            source,
        })
    }

    /// Loads a tc program that passes every packet on to the next program.
    pub fn passing_on() -> Result<Program> {
        const TC_ACT_UNSPEC: i32 = -1;
        let instructions = [instruction(0xb7, 0, 0, TC_ACT_UNSPEC), instruction(0x95, 0, 0, 0)];
        Program::from_instructions("passing_on", &instructions)
    }

    /// Opens a pinned program.
    pub fn open(path: &Path) -> Result<Program> {
        let fd = sys::open_pin(path)
            .map_err(|e| Error::syscall("open pinned program", path.display().to_string(), e))?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Program { fd, name, attach_type: 0 })
    }

    /// Opens the program with that kernel id. Needs `CAP_SYS_ADMIN`.
    pub fn open_id(id: u32) -> Result<Program> {
        let fd = sys::fd_by_id(Command::ProgFdById, id)
            .map_err(|e| Error::syscall("open program number", id.to_string(), e))?;
        let mut program = Program { fd, name: String::new(), attach_type: 0 };
        program.name = program.info()?.name;
        Ok(program)
    }

    /// Returns the full name, as it was at loading.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Pins the program.
    pub fn pin(&self, path: &Path) -> Result<()> {
        sys::pin(self.fd.as_fd(), path)
            .map_err(|e| Error::syscall("pin program", path.display().to_string(), e))
    }

    /// Returns the kernel's information about it.
    pub fn info(&self) -> Result<ProgramInfo> {
        let raw: RawProgInfo =
            sys::info(self.fd.as_fd()).map_err(|e| Error::syscall("ask about program", &self.name, e))?;
        Ok(ProgramInfo {
            id: raw.id,
            name: sys::name_text(&raw.name),
            verified_instructions: raw.verified_insns,
            jited_bytes: raw.jited_len,
            translated_bytes: raw.xlated_len,
            run_time_ns: raw.run_time_ns,
            run_count: raw.run_cnt,
        })
    }

    /// Whether it is a program for tc whose full name may be this one.
    pub(crate) fn is_classifier_named(&self, name: &str) -> Result<bool> {
        let raw: RawProgInfo =
            sys::info(self.fd.as_fd()).map_err(|e| Error::syscall("ask about program", &self.name, e))?;
        Ok(raw.prog_type == SCHED_CLS && raw.name == sys::kernel_name(name))
    }

    /// Runs the program `repeat` times on a packet without sending it. `context` is a `__sk_buff` or an `xdp_md`, may
    /// be empty, and only some of its fields may be set (`man 2 bpf`, BPF_PROG_TEST_RUN).
    pub fn test_run(&self, packet: &[u8], context: &[u64], repeat: u32) -> Result<TestRun> {
        let mut out = vec![0u8; packet.len() + 1024];
        let context_in = bytes_of(context);
        let mut context_out = vec![0u8; context_in.len()];
        let mut attr = TestRunAttr {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_in: packet.as_ptr() as u64,
            data_size_in: packet.len() as u32,
            data_out: out.as_mut_ptr() as u64,
            data_size_out: out.len() as u32,
            repeat,
            ..TestRunAttr::default()
        };
        if !context.is_empty() {
            attr.ctx_in = context_in.as_ptr() as u64;
            attr.ctx_size_in = context_in.len() as u32;
            attr.ctx_out = context_out.as_mut_ptr() as u64;
            attr.ctx_size_out = context_out.len() as u32;
        }
        // JUSTIFICATION: the kernel reads the packet and the context and writes both.
        // SAFETY: all four buffers live across the call and have the lengths given.
        unsafe { sys::bpf(Command::ProgTestRun, &mut attr) }
            .map_err(|e| Error::syscall("test-run program", &self.name, e))?;
        out.truncate(attr.data_size_out as usize);
        context_out.truncate(attr.ctx_size_out as usize);
        Ok(TestRun {
            verdict: attr.retval as i32,
            packet: out,
            context: context_out,
            duration_ns: attr.duration,
        })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
