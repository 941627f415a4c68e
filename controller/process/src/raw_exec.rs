//! The driver `raw_exec`: runs a process of the machine, without isolation.
//!
//! In: a task's `config`. Out: how to run its program: the file, environment, user and directory. The engine does the rest.

mod command;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use herdlet_api_types::{
    AllocId,
    driver::{DriverInfo, RAW_EXEC, RawExecOptions},
    job::Task,
    manifest::{Text, driver::RawExecConfig},
};
use herdlet_base::user::{self, Login};
use herdlet_driver::{AttemptId, DriverError, DriverResult, Fingerprint, Health, TaskConfig, read_config};
use rustix::io::Errno;

use crate::{
    cgroup::Isolation,
    denied::{Denied, InvalidIds},
    engine::{Effort, Engine, RunningTask, Setup, Translate, Translated},
    login::{self, no_user},
    supervisor::{Invocation, NewPrivileges, StandardInput, User},
};
use command::{CommandError, Distrust, Trust};

/// Creates the driver. Must be called within a tokio runtime.
///
/// # Errors
/// If an option is invalid.
pub fn driver(setup: Setup, options: &RawExecOptions) -> Result<Engine, InvalidIds> {
    let RawExecOptions { enabled: _, denied_host_uids, denied_host_gids, denied_envvars } = options;
    let denied = Denied::of(RAW_EXEC, denied_host_uids.as_deref(), denied_host_gids.as_deref())?;
    let translate = RawExec { denied, denied_envvars: denied_envvars.clone(), ..RawExec::default() };
    Ok(Engine::new(DriverInfo::raw_exec(), translate, setup))
}

/// Translates tasks into processes.
#[derive(Debug, Default)]
struct RawExec {
    denied: Denied,
    /// Patterns of the names of variables that no task gets.
    denied_envvars: Vec<String>,
    /// When the log last reported a skipped program, by task. At most [`REPORTED_MAX`] entries.
    reported: Mutex<BTreeMap<(AllocId, String), Instant>>,
}

impl Translate for RawExec {
    fn fingerprint(&self, isolation: &Isolation, _: Effort) -> Fingerprint {
        let description = match isolation {
            Isolation::Cgroups(_) => "Healthy".to_owned(),
            Isolation::None { why } => format!("Healthy; isolation: none ({why})"),
        };
        Fingerprint { health: Health::Healthy, description, attributes: BTreeMap::new() }
    }

    fn refusal(&self, task: &Task) -> Option<String> {
        let (_, user) = login::known_user(RAW_EXEC, task)?;
        self.denied.check(user.uid, &user.groups).err().map(|error| error.why())
    }

    fn task(&self, task: &TaskConfig) -> DriverResult<Translated> {
        let config = read_config::<RawExecConfig>(&task.config)?;
        let invocation = self.invocation(task, &config)?;
        let user = match task.user.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => format!("user {name}"),
            None => "the agent's user".to_owned(),
        };
        let processes = config.pids_limit.map(u64::from);
        Ok(Translated { invocation, processes, user, messages: Vec::new() })
    }

    fn command(&self, task: &RunningTask<'_>, command: &[String]) -> DriverResult<Invocation> {
        let own = read_config::<RawExecConfig>(&task.config.config)?;
        let mut words = command.iter().cloned();
        let command = words.next().unwrap_or_default();
        self.invocation(task.config, &RawExecConfig { command, args: words.map(Text).collect(), ..own })
    }
}

impl RawExec {
    /// Logs a skipped program, at a limited rate: a check that runs each second would fill the log.
    fn report_passed_over(&self, id: &AttemptId, distrust: &Distrust, instead: &Path) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.retain(|_, at| at.elapsed() < REPORT_INTERVAL_MIN);
        let task = (id.alloc, id.task.clone());
        if reported.contains_key(&task) || reported.len() >= REPORTED_MAX {
            return;
        }
        reported.insert(task, Instant::now());
        tracing::warn!(%id, %distrust, instead = %instead.display(), "skipped a program in the allocation's directory that another user could have written; running the one from PATH");
    }

    /// How to run a program as the task: its environment, user and directory.
    fn invocation(&self, task: &TaskConfig, config: &RawExecConfig) -> DriverResult<Invocation> {
        let name = task.user.as_deref().filter(|name| !name.is_empty());
        let found = name.map(user::find).transpose().map_err(no_user)?;
        let denied = [&self.denied_envvars, &config.denied_envvars];
        let environment = environment(task, &denied, found.as_ref().map(|found| &found.login));
        let user = match (name, found) {
            (Some(name), Some(found)) => found.unless_own(name).map_err(no_user)?,
            (_, _) => None,
        };
        let own = || (rustix::process::geteuid().as_raw(), vec![rustix::process::getegid().as_raw()]);
        let as_user = |user: &user::Credentials| (user.uid, user.groups.clone());
        let (uid, gids) = user.as_ref().map_or_else(own, as_user);
        self.denied.check(uid, &gids)?;
        let search_path = task.env.iter().rev().find(|(name, _)| name == "PATH");
        let starter = user.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
        let found = command::find(&command::Lookup {
            command: &config.command,
            task_dir: &task.dirs.task,
            search_path: search_path.map_or("", |(_, path)| path),
            trust: &Trust::new(starter, &task.users),
        })
        .map_err(command_error)?;
        if let Some(distrust) = &found.passed_over {
            self.report_passed_over(&task.id, distrust, &found.path);
        }
        let directory = match &config.work_dir {
            Some(dir) => task.dirs.task.join(dir),
            None => task.dirs.task.clone(),
        };
        let mut arguments = vec![OsString::from(&config.command)];
        arguments.extend(config.args.iter().map(|arg| OsString::from(&arg.0)));
        Ok(Invocation {
            program: found.path,
            entry: found.entry,
            arguments,
            environment,
            directory: Some(directory),
            user: user.map(|user| User { uid: user.uid, gid: user.gid, groups: user.groups }),
            umask: None,
            open_files: None,
            // Never inherit the agent's own value, which may protect it from the OOM killer.
            oom_score_adj: Some(
                config.oom_score_adj.map_or(0, |adjustment| i16::try_from(adjustment).unwrap_or(1000)),
            ),
            new_privileges: if config.no_new_privs { NewPrivileges::Refused } else { NewPrivileges::Allowed },
            cgroup: None,
            tasks_files: Vec::new(),
            network: None,
            isolation: None,
            capabilities: None,
            limits: Vec::new(),
            call_filters: Vec::new(),
            input: StandardInput::Ended,
        })
    }
}

/// Number of tasks remembered. If more tasks report within a minute, further lines show nothing new.
const REPORTED_MAX: usize = 256;

/// Log at most one such line a minute for each task.
const REPORT_INTERVAL_MIN: Duration = Duration::from_secs(60);

/// The task's variables, and those of its user's login that the task does not set itself, without the denied ones.
fn environment(
    task: &TaskConfig,
    denied: &[&Vec<String>],
    login: Option<&Login>,
) -> Vec<(OsString, OsString)> {
    let mut variables = task.env.clone();
    if let Some(login) = login {
        login::add_to(&mut variables, login);
    }
    variables.retain(|(name, _)| !denied.iter().copied().flatten().any(|pattern| is_like(name, pattern)));
    variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Whether a name matches a pattern in which each `*` stands for any string.
fn is_like(name: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match name.find(part) {
            Some(at) => name = name.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    name.ends_with(last)
}

fn command_error(error: CommandError) -> DriverError {
    match error {
        CommandError::NotFound { .. } => DriverError::no_program(error),
        CommandError::Empty | CommandError::NotExecutable { .. } | CommandError::NotAProgram { .. } => {
            DriverError::fatal(error)
        }
        // The offending file may be gone at the next try.
        CommandError::Untrusted { .. } => DriverError::recoverable(error),
        CommandError::Io { ref source, .. } if is_refusal(source) => DriverError::fatal(error),
        CommandError::Io { .. } => DriverError::retry(error),
        CommandError::Users(error) => no_user(error),
    }
}

/// A permission that the agent lacks now is lacking at the next try too.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::PERM | Errno::ACCESS | Errno::ROFS | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG)
    )
}

#[cfg(test)]
mod tests {
    use herdlet_base::user::UserError;
    use herdlet_driver::FailureClass as Class;

    use super::*;

    #[test]
    fn program_shortage_is_retried_and_refusal_is_not() {
        let source = std::io::Error::from_raw_os_error;
        let io = |errno| CommandError::Io { operation: "open", path: "/x".into(), source: source(errno) };
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO] {
            assert_eq!(command_error(io(errno)).class(), Class::Retry);
            let lookup = UserError::Lookup { name: "web".into(), source: source(errno) };
            assert_eq!(command_error(CommandError::Users(lookup)).class(), Class::Retry);
        }
        for errno in [libc::EPERM, libc::EACCES, libc::EROFS] {
            assert_eq!(command_error(io(errno)).class(), Class::Fatal);
        }
    }

    #[test]
    fn names_are_denied_by_patterns() {
        for (pattern, fits, others) in [
            ("AWS_KEY", vec!["AWS_KEY"], vec!["AWS_KEYS", "aws_key", ""]),
            ("AWS_*", vec!["AWS_", "AWS_KEY"], vec!["AWS", "X_AWS_KEY"]),
            ("*_KEY", vec!["_KEY", "AWS_KEY"], vec!["AWS_KEYS"]),
            ("A*B*C", vec!["ABC", "AxByC", "ABBC"], vec!["AC", "ACB", "AB"]),
            ("A*A", vec!["AA", "ABA"], vec!["A"]),
            ("*", vec!["", "A"], vec![]),
        ] {
            assert!(fits.iter().all(|name| is_like(name, pattern)), "{pattern}");
            assert!(!others.iter().any(|name| is_like(name, pattern)), "{pattern}");
        }
    }
}
