//! Tests that need raw system calls: keys in the agent's keyring, and the system calls that the unpacking
//! process may still make.

#![expect(unsafe_code, reason = "keyrings and ptrace have no safe interface here")]

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use herdlet_e2e::{agent::Agent, environment, program::program, wait};

use crate::common::{is_root, job, shell};

/// Adds a key to a new session keyring of this thread, which its children inherit.
pub(super) fn hold_a_key(name: &str) -> bool {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    const SESSION_KEYRING: libc::c_long = -3;
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: the arguments are NUL-terminated strings and numbers.
    unsafe {
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) >= 0
            && libc::syscall(
                libc::SYS_add_key,
                c"user".as_ptr(),
                name.as_ptr(),
                c"secret".as_ptr(),
                6,
                SESSION_KEYRING,
            ) >= 0
    }
}

#[test]
fn a_task_of_another_user_has_no_key_of_the_agents() {
    let name = format!("herdlet-test-{}", std::process::id());
    if !is_root() {
        return;
    }
    if !fs::exists("/proc/keys").unwrap_or(false) || !hold_a_key(&name) {
        return environment::leave_out("this needs a kernel with keyrings");
    }
    let mut agent = Agent::start();
    let script = format!("grep -c {name} /proc/keys; exec sleep 100000");
    for (job_name, user, keys) in [("own", "", "1\n"), ("others", "user: nobody", "0\n")] {
        agent.apply_and_wait(&job(job_name, "service", "", &[shell("t", &script, user)]));
        wait::until_true("the task has counted the keys that it can use", || {
            let output = agent.cli(&["logs", job_name]).stdout;
            assert!(output.is_empty() || output == keys, "{job_name}: {output}");
            !output.is_empty()
        });
    }
    agent.finish();
}

/// Starts the unpacking process, which waits for an archive that never comes.
fn unpacker(dir: &std::path::Path) -> Child {
    let order = serde_json::json!({ "Files": {
        "format": {"Tar": "Plain"}, "name": "x", "folder": "", "bytes_max": 1_000_000, "entries_max": 100, "user": null,
        "seconds_max": 600,
    } });
    // Like an agent with its own oom_score_adj.
    let script = "echo 300 > /proc/$$/oom_score_adj; exec \"$0\" unpack \"$1\"";
    let child = Command::new("/bin/sh")
        .args(["-c".as_ref(), script.as_ref(), program().as_os_str(), order.to_string().as_ref()])
        .env_clear()
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    wait::until_true("the process waits for the archive, with its filter", || {
        let text = fs::read_to_string(&status).unwrap();
        text.contains("Seccomp:\t2") && text.contains("State:\tS")
    });
    child
}

#[test]
fn unpacking_process_is_confined_before_it_reads() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = unpacker(dir.path());
    let text = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Threads:\t1"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", child.id())).unwrap();
    assert_eq!(score.trim(), "0");
    let root = fs::read_link(format!("/proc/{}/root", child.id())).unwrap();
    assert_eq!(root, fs::canonicalize(dir.path()).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Injects system calls into the process, like an attacker who controls it.
#[cfg(target_arch = "x86_64")]
#[test]
fn unpacking_process_can_make_no_other_system_call() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = unpacker(dir.path());
    let pid = i32::try_from(child.id()).unwrap();
    let held = injection::StoppedProcess::stop(pid);
    assert_eq!(held.call(libc::SYS_getpid, [0; 6]), i64::from(pid), "allowed system calls work");
    let refused = -i64::from(libc::EPERM);
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let code = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
    for (what, number, arguments) in [
        ("a socket", libc::SYS_socket, [libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0]),
        ("a program", libc::SYS_execve, [0; 6]),
        ("a program by descriptor", libc::SYS_execveat, [0; 6]),
        ("a child", libc::SYS_fork, [0; 6]),
        ("a thread", libc::SYS_clone3, [0; 6]),
        ("another process", libc::SYS_ptrace, [libc::PTRACE_PEEKTEXT.into(), 0, 0, 0, 0, 0]),
        ("a signal", libc::SYS_kill, [pid as u64, 0, 0, 0, 0, 0]),
        ("a mount", libc::SYS_mount, [0; 6]),
        ("a namespace", libc::SYS_unshare, [0; 6]),
        ("a key", libc::SYS_keyctl, [0xffff, 0, 0, 0, 0, 0]),
        ("a ring", libc::SYS_io_uring_setup, [0; 6]),
        ("a file in memory", libc::SYS_memfd_create, [0; 6]),
        ("memory of code", libc::SYS_mmap, [0, 4096, code, anonymous, u64::MAX, 0]),
        ("a call of x32", 0x4000_0000 | libc::SYS_getpid, [0; 6]),
    ] {
        assert_eq!(held.call(number, arguments), refused, "{what}");
    }
    let memory = [0, 4096, libc::PROT_READ as u64, anonymous, u64::MAX, 0];
    assert!(held.call(libc::SYS_mmap, memory) > 0, "memory without execution is allowed");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[cfg(target_arch = "x86_64")]
mod injection {
    use libc::{c_long, c_void, user_regs_struct};

    /// A process that was stopped while it waited in a system call.
    pub(super) struct StoppedProcess {
        pid: i32,
        registers: user_regs_struct,
    }

    /// Length of the instruction `syscall`.
    const SYSCALL_LEN: u64 = 2;

    impl StoppedProcess {
        pub(super) fn stop(pid: i32) -> Self {
            trace(libc::PTRACE_SEIZE, pid, std::ptr::null_mut());
            trace(libc::PTRACE_INTERRUPT, pid, std::ptr::null_mut());
            wait_for_stop(pid);
            Self { pid, registers: registers(pid) }
        }

        /// Makes the process do a system call, and returns its result.
        pub(super) fn call(&self, number: c_long, arguments: [u64; 6]) -> i64 {
            let [rdi, rsi, rdx, r10, r8, r9] = arguments;
            let mut asked = user_regs_struct {
                rip: self.registers.rip - SYSCALL_LEN,
                rax: number as u64,
                // Don't restart the interrupted system call.
                orig_rax: u64::MAX,
                rdi,
                rsi,
                rdx,
                r10,
                r8,
                r9,
                ..self.registers
            };
            trace(libc::PTRACE_SETREGS, self.pid, (&raw mut asked).cast());
            trace(libc::PTRACE_SINGLESTEP, self.pid, std::ptr::null_mut());
            wait_for_stop(self.pid);
            registers(self.pid).rax as i64
        }
    }

    fn registers(pid: i32) -> user_regs_struct {
        // SAFETY: the struct consists of integers, for which zero is valid.
        let mut found: user_regs_struct = unsafe { std::mem::zeroed() };
        trace(libc::PTRACE_GETREGS, pid, (&raw mut found).cast());
        found
    }

    fn trace(request: libc::c_uint, pid: i32, data: *mut c_void) {
        // SAFETY: `data` is valid for the request.
        let done = unsafe { libc::ptrace(request, pid, std::ptr::null_mut::<c_void>(), data) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    fn wait_for_stop(pid: i32) {
        let mut status = 0;
        // SAFETY: the pointer is valid.
        let found = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        assert!(found == pid && libc::WIFSTOPPED(status), "{status:#x}");
    }
}
