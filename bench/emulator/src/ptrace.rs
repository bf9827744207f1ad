//! A program stopped at its start, which can be made to execute system calls: `ptrace(2)`.
//!
//! Only for children of this process. [`Traced::spawn`] stops the program at its first instruction, [`Traced::call`]
//! makes it execute system calls there, and [`Traced::release`] restores its state and lets it run. x86-64 only: the
//! instruction and the registers of a system call differ on every architecture.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use kernel::{Error, Result};

/// The instruction `syscall`, and a trap at which the program stops again.
const CALL: [u8; 8] = [0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];

/// The red zone below the stack pointer (System V ABI), and space for a string.
const BELOW_STACK: u64 = 128 + 256;

/// A program stopped right after `execve(2)`. It is killed if it is dropped without [`Traced::release`].
#[derive(Debug)]
pub struct Traced {
    child: Option<Child>,
    pid: i32,
    registers: libc::user_regs_struct,
    /// The word at the instruction pointer, which [`CALL`] replaces temporarily.
    text: libc::c_long,
    /// Signals that arrived in the meantime; they are sent again when the program is released.
    signals: Vec<libc::c_int>,
}

impl Traced {
    /// Starts a program and stops it at its first instruction. It is killed when the calling thread ends
    /// (`PR_SET_PDEATHSIG`), and its addresses are the same in every run (`ADDR_NO_RANDOMIZE`).
    ///
    /// # Errors
    /// [`crate::Error::Start`] if the program cannot be started; [`Error::Unsupported`] on another architecture than
    /// x86-64; [`Error::Io`] if it cannot be traced.
    pub fn spawn(mut command: Command) -> crate::Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::Unsupported {
                what: "system calls cannot be injected into a program on this architecture".to_owned(),
                remedy: "use x86-64".to_owned(),
            }
            .into());
        }
        let program = PathBuf::from(command.get_program());
        let fail = |source| crate::Error::Start { program: program.clone(), source };
        let parent = std::process::id();
        let prepare = move || {
            if !kernel::process::end_with(parent).map_err(io::Error::other)? {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            // SAFETY: personality takes no pointer; TRACEME ignores its other arguments. Both affect only this child,
            // between fork and exec.
            let done = unsafe {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) != -1 && libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != -1
            };
            if done { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
        let child = unsafe { command.pre_exec(prepare) }.spawn().map_err(fail)?;
        let pid = i32::try_from(child.id()).map_err(|_| fail(io::Error::other("invalid process id")))?;
        // SAFETY: an all-zero user_regs_struct is a valid value of that plain structure.
        let registers = unsafe { std::mem::zeroed() };
        let mut traced = Self { child: Some(child), pid, registers, text: 0, signals: Vec::new() };
        if traced.wait()? != libc::SIGTRAP {
            return Err(fail(io::Error::other("the program did not stop at its start")));
        }
        traced.ptrace(libc::PTRACE_SETOPTIONS, 0, libc::PTRACE_O_EXITKILL as u64)?;
        traced.registers = traced.read_registers()?;
        traced.text = traced.peek(traced.registers.rip)?;
        Ok(traced)
    }

    /// Process id of the program.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Makes the program execute one system call. Returns its result, which is not negative.
    ///
    /// # Errors
    /// [`Error::Io`] with the error number of the call; [`Error::Gone`].
    pub fn call(&mut self, op: &'static str, number: libc::c_long, arguments: [u64; 6]) -> Result<u64> {
        self.poke(self.registers.rip, libc::c_long::from_ne_bytes(CALL))?;
        let registers = self.registers_for(number, arguments);
        self.call_at(op, registers)
    }

    /// The same with the `syscall` instruction at `address`, and with `rbx` set.
    ///
    /// # Errors
    /// As [`Traced::call`].
    pub fn call_from(&mut self, op: &'static str, address: u64, rbx: u64, number: libc::c_long, arguments: [u64; 6]) -> Result<u64> {
        let registers = libc::user_regs_struct { rip: address, rbx, ..self.registers_for(number, arguments) };
        self.call_at(op, registers)
    }

    /// Writes a NUL-terminated string below the program's stack, over an earlier one. Returns its address.
    ///
    /// # Errors
    /// [`Error::Io`], `ENAMETOOLONG` for over 200 bytes; [`Error::Gone`].
    pub fn put(&mut self, text: &str) -> Result<u64> {
        if text.len() > 200 {
            return Err(self.fail("write to", io::Error::from_raw_os_error(libc::ENAMETOOLONG)));
        }
        let address = (self.registers.rsp - BELOW_STACK) & !7;
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(text.len() / 8 * 8 + 8, 0);
        for (at, word) in (address..).step_by(8).zip(bytes.as_chunks::<8>().0) {
            self.poke(at, libc::c_long::from_ne_bytes(*word))?;
        }
        Ok(address)
    }

    /// Restores registers and code, ends the tracing, and lets the program run.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Io`].
    pub fn release(mut self) -> Result<Child> {
        self.poke(self.registers.rip, self.text)?;
        self.write_registers(&self.registers)?;
        self.ptrace(libc::PTRACE_DETACH, 0, 0)?;
        let child = self.child.take();
        for signal in self.signals.drain(..) {
            // SAFETY: kill takes no pointer; the pid is that of our child, which we have not waited for.
            unsafe { libc::kill(self.pid, signal) };
        }
        child.ok_or(Error::Gone { path: PathBuf::from(format!("/proc/{}", self.pid)) })
    }

    fn registers_for(&self, number: libc::c_long, arguments: [u64; 6]) -> libc::user_regs_struct {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        // orig_rax marks that no system call is in progress that the kernel might restart.
        libc::user_regs_struct { rax: number.cast_unsigned(), orig_rax: u64::MAX, rdi, rsi, rdx, r10, r8, r9, ..self.registers }
    }

    fn call_at(&mut self, op: &'static str, registers: libc::user_regs_struct) -> Result<u64> {
        self.write_registers(&registers)?;
        self.ptrace(libc::PTRACE_CONT, 0, 0)?;
        loop {
            match self.wait()? {
                libc::SIGTRAP => break,
                signal => self.signals.push(signal),
            }
            self.ptrace(libc::PTRACE_CONT, 0, 0)?;
        }
        let result = self.read_registers()?.rax;
        match i32::try_from(result.cast_signed()) {
            Ok(errno @ -4095..=-1) => Err(self.fail(op, io::Error::from_raw_os_error(-errno))),
            _ => Ok(result),
        }
    }

    /// Waits until the program stops. Returns the signal that stopped it.
    fn wait(&self) -> Result<libc::c_int> {
        let mut status = 0;
        // SAFETY: `status` outlives the call, and the pid is that of our child.
        if unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } != self.pid {
            return Err(self.fail("wait for", io::Error::last_os_error()));
        }
        if libc::WIFSTOPPED(status) { Ok(libc::WSTOPSIG(status)) } else { Err(Error::Gone { path: self.path() }) }
    }

    fn read_registers(&self) -> Result<libc::user_regs_struct> {
        let mut registers = self.registers;
        self.ptrace(libc::PTRACE_GETREGS, 0, (&raw mut registers).expose_provenance() as u64)?;
        Ok(registers)
    }

    fn write_registers(&self, registers: &libc::user_regs_struct) -> Result<()> {
        self.ptrace(libc::PTRACE_SETREGS, 0, std::ptr::from_ref(registers).expose_provenance() as u64)
    }

    fn peek(&self, address: u64) -> Result<libc::c_long> {
        let mut word: libc::c_long = 0;
        // The system call, unlike its wrapper, writes the word to the address `data`.
        let (data, request) = ((&raw mut word).expose_provenance() as u64, libc::PTRACE_PEEKDATA);
        // SAFETY: `word` outlives the call, which writes one word to it.
        if unsafe { libc::syscall(libc::SYS_ptrace, request, self.pid, address, data) } == -1 {
            return Err(self.fail("read the memory of", io::Error::last_os_error()));
        }
        Ok(word)
    }

    fn poke(&self, address: u64, word: libc::c_long) -> Result<()> {
        self.ptrace(libc::PTRACE_POKEDATA, address, word.cast_unsigned())
    }

    fn ptrace(&self, request: libc::c_uint, address: u64, data: u64) -> Result<()> {
        // SAFETY: for requests that take a pointer, the callers above pass the address of a live value of the type that
        // ptrace(2) specifies; the process is a stopped child of this one.
        if unsafe { libc::ptrace(request, self.pid, address, data) } == -1 {
            return Err(self.fail("trace", io::Error::last_os_error()));
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.pid))
    }

    fn fail(&self, op: &'static str, source: io::Error) -> Error {
        Error::from_io(&self.path(), op, source)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The program is partially modified and must not run. It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn injected_system_calls_do_not_affect_the_program() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $PPID; exit 7"]).stdout(Stdio::piped());
        let mut traced = match Traced::spawn(command) {
            Ok(traced) => traced,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        assert_eq!(traced.call("getpid", libc::SYS_getpid, [0; 6]).unwrap(), u64::try_from(traced.pid()).unwrap());
        let name = traced.put("/nowhere/at/all").unwrap();
        let refused = traced.call("rmdir", libc::SYS_rmdir, [name, 0, 0, 0, 0, 0]).unwrap_err();
        assert!(refused.is_gone(), "{refused}: ENOENT");
        let output = traced.release().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), std::process::id().to_string());
    }
}
