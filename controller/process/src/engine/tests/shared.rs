//! Two drivers on one engine's directories: each finds, follows and removes only its own attempts.

use super::*;
use crate::supervisor::{Invocation, NewPrivileges, StandardInput};

/// A driver that makes a directory for each attempt.
#[derive(Debug)]
struct Other(PathBuf);

impl Translate for Other {
    fn fingerprint(&self, _: &Isolation, _: Effort) -> Fingerprint {
        Fingerprint { health: Health::Healthy, description: String::new(), attributes: BTreeMap::new() }
    }

    fn task(&self, task: &TaskConfig) -> DriverResult<Translated> {
        fs::create_dir_all(self.0.join(task.id.name())).unwrap();
        if task.config.is_null() {
            return Err(DriverError::fatal("start it: it has no config"));
        }
        let arguments = ["sh", "-c", "exec sleep 1000"].map(Into::into).into();
        let invocation = Invocation {
            program: "/bin/sh".into(),
            entry: None,
            arguments,
            environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
            directory: Some(task.dirs.task.clone()),
            user: None,
            umask: None,
            open_files: None,
            limits: Vec::new(),
            call_filters: Vec::new(),
            input: StandardInput::Ended,
            oom_score_adj: None,
            new_privileges: NewPrivileges::Allowed,
            cgroup: None,
            tasks_files: Vec::new(),
            network: None,
            isolation: None,
            capabilities: None,
        };
        Ok(Translated { invocation, processes: None, user: String::new(), messages: Vec::new() })
    }

    fn command(&self, task: &RunningTask<'_>, _: &[String]) -> DriverResult<Invocation> {
        Err(DriverError::fatal(format!("main process {}", task.main.pid)))
    }

    fn tear_down(&self, id: &AttemptId) -> DriverResult<()> {
        match fs::remove_dir_all(self.0.join(id.name())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(retry(error)),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn two_drivers_share_the_engine() {
    for bench in Bench::both() {
        let attempts = Attempts::open(&bench.path("run/attempts")).unwrap();
        let raw_exec =
            raw_exec::driver(bench.setup(Arc::clone(&attempts)), &RawExecOptions::default()).unwrap();
        let info = DriverInfo { name: "other".to_owned(), ..DriverInfo::raw_exec() };
        let made = bench.path("made");
        let other = Engine::new(info, Other(made.clone()), bench.setup(attempts));
        raw_exec.start(bench.shell("exec sleep 1000")).await.unwrap();
        other.start(TaskConfig { id: id(2), ..bench.task(json!({})) }).await.unwrap();
        assert_eq!(raw_exec.list_attempts().await.unwrap(), [id(1)]);
        assert_eq!(other.list_attempts().await.unwrap(), [id(2)]);
        let (_, record) = other.shared.running(&id(2)).unwrap();
        let refused = other.exec(&id(2), &["x".to_owned()], Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(refused.why(), format!("main process {}", record.task.pid));
        // What was made for an attempt goes with it, and after a failed start.
        assert!(made.join(id(2).name()).exists());
        other.destroy(&id(2), Leftover::Kill).await.unwrap();
        other.start(TaskConfig { id: id(3), ..bench.task(serde_json::Value::Null) }).await.unwrap_err();
        assert_eq!(fs::read_dir(&made).unwrap().count(), 0);
        assert_eq!(raw_exec.list_attempts().await.unwrap(), [id(1)]);
        raw_exec.destroy(&id(1), Leftover::Kill).await.unwrap();
    }
}
