//! `herdlet run JOB -- COMMAND`: one run of a command in the environment of a job's task, beside the job.
//!
//! In: a job with a task, and a command. Out: the command's output and its exit code. The command runs in a batch job of its own,
//! which has the task's user, environment, volumes, artifacts and limits, and is deleted at the end. The job itself, its services
//! and its static ports are not touched.

use std::{collections::BTreeMap, convert::Infallible};

use futures_util::{Stream, StreamExt as _};
use herdlet_api_types::{
    JobKey,
    api::{ApplyRequest, ManifestText},
    job::{Group, Job, JobType, Lifecycle, RUN_OF, ReschedulePolicy, RestartMode, RestartPolicy, Task},
    task::TaskStatus,
    view::{AllocView, ConvergenceState, JobView},
};
use herdlet_base::{clock, interrupt::interrupted};
use herdlet_manifest::{manifests, sets};
use serde_json::{Map, Value, json};

use super::{
    Connection,
    client::{Client, ClientError, EndFlags},
    failed_allocs,
    failure::{AGENT_FAILED, Failure, INTERRUPTED, NOBODY_READS, USAGE},
    logs, stdout,
    table::plain,
    target::{self, Target},
    watch::{ChangeStep, Shown},
};

/// What to run, and where.
#[derive(Debug)]
pub struct OneOff {
    pub target: String,
    pub command: Vec<String>,
    pub connection: Connection,
}

/// The longest id of a job, shortened to leave room for the rest.
const ID_LEN_MAX: usize = 40;

pub async fn run(wanted: OneOff) -> u8 {
    let ended = execute(&wanted).await;
    // The command has run, but its output is incomplete.
    match ended.and_then(|code| stdout::failure().map_or(Ok(code), Err)) {
        Ok(code) => code,
        Err(failure) => {
            let failure = failure.not_the_tasks();
            failure.print();
            failure.code
        }
    }
}

async fn execute(wanted: &OneOff) -> Result<u8, Failure> {
    let client = wanted.connection.client()?;
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let target = target::find_among(&client, &wanted.target, &jobs, &allocs).await?;
    let view = job_of(&target, &jobs, &wanted.target)?;
    let job = one_off(&view.job, &target, &wanted.command)?;
    let key = job.key();
    let text = manifests::job_to_yaml(&job).map_err(|error| Failure::new(format!("failed to {error}")))?;
    let request = ApplyRequest {
        files: vec![ManifestText { name: key.id.to_string(), text }],
        ..ApplyRequest::default()
    };
    // Listens before the job exists: a signal must not leave it behind.
    let interrupt = interrupted();
    // And so must not a kill of this process: from here on, the agent deletes the job when the connection ends.
    let mut held = hold(&client, &key).await?;
    let reply = client.apply(&request).await?;
    for warning in &reply.warnings {
        // Under the name that the user knows.
        herdlet_base::stderr_line!("warning: {}", warning.replace(&*key.id, &view.job.id));
    }
    let ended = tokio::select! {
        biased;
        ended = follow(&client, &key, &wanted.command) => ended,
        never = until_lost(&mut held) => match never {},
        () = interrupt => Ok(INTERRUPTED),
        // As the command itself would end if it wrote to the pipe.
        () = stdout::unread() => Ok(NOBODY_READS),
    };
    match client.delete_job(&key, EndFlags::default()).await {
        Ok(_) | Err(ClientError::Status { status: 404, .. }) => {}
        Err(error) => herdlet_base::stderr_line!(
            "the job of the command was not deleted: {error}; delete it: herdlet delete {key}"
        ),
    }
    ended
}

/// Opens a request that stays open for as long as the command may run; none at an agent of an older release.
async fn hold(
    client: &Client,
    key: &JobKey,
) -> Result<Option<impl Stream<Item = Result<(), ClientError>> + Unpin + use<>>, Failure> {
    match client.hold_job(key).await {
        Ok(held) => Ok(Some(held)),
        Err(ClientError::Status { status: 404 | 405 | 501, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the answer for as long as it comes. Then the agent ends, or the job has: another branch reports which.
async fn until_lost(held: &mut Option<impl Stream<Item = Result<(), ClientError>> + Unpin>) -> Infallible {
    if let Some(held) = held {
        while let Some(Ok(())) = held.next().await {}
    }
    std::future::pending().await
}

fn job_of<'j>(target: &Target, jobs: &'j [JobView], text: &str) -> Result<&'j JobView, Failure> {
    let key = target.job.as_ref().or_else(|| target.allocs.first().map(|view| &view.spec.job_key));
    let found = jobs.iter().find(|view| Some(&view.key) == key);
    found.ok_or_else(|| Failure::new(format!("{text} belongs to no job of this machine")))
}

/// The job that runs the command once.
fn one_off(job: &Job, target: &Target, command: &[String]) -> Result<Job, Failure> {
    let (group, task) = choose(job, target)?;
    // Tasks that prepare the main ones, for instance by a migration or a download, prepare the command too.
    let prepares = |other: &&Task| other.lifecycle == Lifecycle::Prestart && other.name != task.name;
    let mut tasks: Vec<Task> = group.tasks.iter().filter(prepares).cloned().map(once).collect();
    tasks.push(Task { config: config(task, command)?, lifecycle: Lifecycle::Main, ..once(task.clone()) });
    let mut network = group.network.clone();
    let of_group = network.iter_mut().flat_map(|network| network.ports.values_mut());
    let of_tasks = tasks.iter_mut().flat_map(|task| task.ports.values_mut());
    // The job itself may hold the static ports.
    of_group.chain(of_tasks).for_each(|port| port.fixed = None);
    let mut labels: BTreeMap<String, String> = job.labels.clone();
    labels.remove(sets::LABEL);
    labels.insert(RUN_OF.to_owned(), job.id.clone());
    let short: String = job.id.chars().take(ID_LEN_MAX).collect();
    let unique = clock::wall_now().0.unsigned_abs() % (1 << 40);
    Ok(Job {
        id: format!("{}-run-{unique:x}", short.trim_end_matches('-').replace('/', "-")),
        name: format!("{} ({})", job.name, command.first().map_or("", String::as_str)),
        labels,
        kind: JobType::Batch,
        stop: false,
        parameterized: None,
        periodic: None,
        child: None,
        groups: vec![Group {
            count: 1,
            scaling: None,
            update: None,
            reschedule: ReschedulePolicy::default(),
            network,
            services: Vec::new(),
            depends_on: Vec::new(),
            tasks,
            ..group.clone()
        }],
        ..job.clone()
    })
}

/// The task without what concerns a service, tried once.
fn once(task: Task) -> Task {
    let restart = RestartPolicy { attempts: 0, mode: RestartMode::Fail, ..task.restart.clone() };
    Task {
        restart,
        services: Vec::new(),
        depends_on: Vec::new(),
        dispatch_payload: None,
        actions: Vec::new(),
        leader: false,
        prestop: None,
        csi_plugin: None,
        ..task
    }
}

/// The driver's configuration with another command.
fn config(task: &Task, command: &[String]) -> Result<Value, Failure> {
    let (program, args) =
        command.split_first().ok_or_else(|| Failure::new("no command was given").code(USAGE))?;
    let mut config: Map<String, Value> = task.config.as_object().cloned().unwrap_or_default();
    if !config.contains_key("command") {
        let message = format!("task {} runs no command: its driver is {}", task.name, task.driver);
        return Err(Failure::new(message).hint("name another task: herdlet run JOB/TASK -- COMMAND"));
    }
    // The words are literal, as those of `exec`: `${…}` is a shell's.
    let literal = |word: &String| word.replace("${", "$${");
    config.insert("command".to_owned(), json!(literal(program)));
    config.insert("args".to_owned(), json!(args.iter().map(literal).collect::<Vec<_>>()));
    Ok(Value::Object(config))
}

/// The task that is named, else the only main task.
fn choose<'j>(job: &'j Job, target: &Target) -> Result<(&'j Group, &'j Task), Failure> {
    let in_target = |group: &&Group| {
        let groups = || target.allocs.iter().map(|view| &view.spec.group);
        target.allocs.is_empty() || groups().any(|name| *name == group.name)
    };
    let is_meant = |task: &&Task| match &target.task {
        Some(name) => task.name == *name,
        None => task.lifecycle == Lifecycle::Main,
    };
    let found: Vec<(&Group, &Task)> = job
        .groups
        .iter()
        .filter(in_target)
        .flat_map(|group| group.tasks.iter().filter(is_meant).map(move |task| (group, task)))
        .collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(Failure::new(format!("job {} has no such task", job.id)).code(USAGE)),
        several => {
            let names: Vec<String> = several
                .iter()
                .map(|(group, task)| format!("{}.{}/{}", job.id, group.name, task.name))
                .collect();
            Err(Failure::new(format!("job {} has several tasks", job.id))
                .code(USAGE)
                .hint(format!("name one of them: {}", names.join(", "))))
        }
    }
}

/// Prints what the command writes, until it has ended.
async fn follow(client: &Client, key: &JobKey, command: &[String]) -> Result<u8, Failure> {
    let mut shown = Shown::default();
    let mut events = client.events().await?;
    let mut waits = String::new();
    while let Some(change) = events.next().await {
        if shown.apply(change?) == ChangeStep::Part {
            continue;
        }
        let Some(view) = shown.allocs_of(key).first().map(|view| (*view).clone()) else {
            let job = shown.jobs.get(key);
            print_once(&mut waits, job.map(|job| job.convergence.message.as_str()).unwrap_or_default());
            continue;
        };
        let Some(task) = view.tasks.last() else { continue };
        if task.attempt > 0 {
            logs::follow_task(client, &view, &task.name).await?;
            return result(client, &view, command).await;
        }
        if view.status.is_terminal() || task.state == TaskStatus::Dead {
            return result(client, &view, command).await;
        }
        if view.convergence.state == ConvergenceState::Waiting {
            print_once(&mut waits, &view.convergence.message);
        }
    }
    Err(Failure::new("the agent ended while the command ran"))
}

fn print_once(last: &mut String, message: &str) {
    if !message.is_empty() && last != message {
        herdlet_base::stderr_line!("waiting: {message}");
        message.clone_into(last);
    }
}

/// The exit code of the command, once it is known.
async fn result(client: &Client, view: &AllocView, command: &[String]) -> Result<u8, Failure> {
    let mut shown = Shown::default();
    let mut events = client.events().await?;
    while let Some(change) = events.next().await {
        if shown.apply(change?) == ChangeStep::Part {
            continue;
        }
        let Some(view) = shown.allocs.get(&view.spec.id) else { break };
        let Some(task) = view.tasks.last().filter(|task| task.state == TaskStatus::Dead) else { continue };
        return match &task.exit {
            Some(exit) if exit.error.is_empty() => Ok(u8::try_from(exit.code & 0xff).unwrap_or(AGENT_FAILED)),
            Some(exit) => Err(Failure::new(exit.error.clone()).of_command(command)),
            None => {
                // Its job, and so the output of a task that has failed before it, is deleted next.
                for line in failed_allocs::last_output(client, view).await {
                    herdlet_base::stderr_line!("{line}");
                }
                Err(Failure::new(format!("the command was not started: {}", why_not(view)))
                    .of_command(command))
            }
        };
    }
    Err(Failure::new("the result of the command is not known: its allocation is gone"))
}

/// Why the last task was not started: the failures of the tasks before it, otherwise its own last event.
fn why_not(view: &AllocView) -> String {
    let causes = failed_allocs::causes(view);
    if !causes.is_empty() {
        return causes.join("; ");
    }
    let last = view.tasks.last().and_then(|task| task.events.last());
    last.map(|event| plain(&event.message)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_manifest::fixture::job;

    fn target(task: Option<&str>) -> Target {
        Target { job: None, allocs: Vec::new(), task: task.map(str::to_owned) }
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn one_off_command_has_environment_but_no_services() {
        let mut web = Job::clone(&job("web", "front", "httpd"));
        web.labels = [("app".to_owned(), "shop".to_owned()), (sets::LABEL.to_owned(), "s".to_owned())].into();
        let group = &mut web.groups[0];
        (group.count, group.tasks[0].config) =
            (3, json!({"command": "/bin/httpd", "args": ["-f"], "work_dir": "x"}));
        group.tasks[0].env.insert("A".to_owned(), "b".to_owned());
        group.tasks[0].ports = group.network.clone().unwrap().ports;
        // `sh -c 'echo ${x:-1}'` was refused.
        let shell = one_off(&web, &target(None), &words(&["sh", "-c", "echo ${x:-1} $y"])).unwrap();
        assert_eq!(shell.groups[0].tasks[0].config["args"], json!(["-c", "echo $${x:-1} $y"]));
        let made = one_off(&web, &target(None), &words(&["env", "-0"])).unwrap();
        assert!(made.id.starts_with("web-run-") && made.kind == JobType::Batch);
        assert_eq!(made.labels.keys().map(String::as_str).collect::<Vec<_>>(), ["app", RUN_OF]);
        let (group, task) = (&made.groups[0], &made.groups[0].tasks[0]);
        assert_eq!((group.count, task.restart.attempts, task.env["A"].as_str()), (1, 0, "b"));
        assert_eq!(task.config, json!({"command": "env", "args": ["-0"], "work_dir": "x"}));
        assert!(group.services.is_empty() && task.services.is_empty());
        assert_eq!((group.port_requests().count(), group.fixed_ports().count()), (2, 0));
    }

    #[test]
    fn prestart_tasks_run_first_with_one_main_task() {
        let mut web = Job::clone(&job("web", "front", "httpd"));
        web.groups[0].tasks[0].config = json!({"command": "x"});
        let template = web.groups[0].tasks[0].clone();
        let with =
            |name: &str, lifecycle: Lifecycle| Task { name: name.to_owned(), lifecycle, ..template.clone() };
        web.groups[0].tasks.extend([
            with("init", Lifecycle::Prestart),
            with("log", Lifecycle::PrestartSidecar),
            with("end", Lifecycle::Poststop),
        ]);
        let made = one_off(&web, &target(None), &words(&["a"])).unwrap();
        let names: Vec<&str> = made.groups[0].tasks.iter().map(|task| task.name.as_str()).collect();
        assert_eq!(names, ["init", "httpd"]);
        let made = one_off(&web, &target(Some("log")), &words(&["a"])).unwrap();
        assert_eq!(
            made.groups[0].tasks.last().map(|task| (task.name.as_str(), task.lifecycle)),
            Some(("log", Lifecycle::Main))
        );
        web.groups[0].tasks.push(with("other", Lifecycle::Main));
        let refused = one_off(&web, &target(None), &words(&["a"])).unwrap_err();
        assert!(refused.code == USAGE && refused.to_string().contains("several tasks"));
    }
}
