//! Upgrades: a new agent takes over the state of an older one, its running supervisors, and work in progress.
//! `crash.rs` tests a state of a newer version.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use herdlet_e2e::{agent::Agent, environment, home::runtime, host, http, upgrade, wait};
use herdlet_shim::record::{Record, State};
use rustix::process::Signal;

use crate::{
    common::{is_root, job, sleeper},
    task_api,
    templates::{
        crashes::marks, greeting, put, quick, recorded, recorder, template, until_file, until_recorded,
    },
};

#[test]
fn state_and_supervisors_of_older_versions_are_adopted() {
    if !is_root() {
        return;
    }
    if host::cgroup2().is_none() {
        environment::leave_out("there are no cgroups");
        return;
    }
    let entries = fs::read_dir(upgrade::fixtures()).unwrap().flatten().map(|entry| entry.path());
    let fixtures: Vec<_> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "gz")).collect();
    assert!(!fixtures.is_empty());
    for fixture in fixtures {
        eprintln!("{}", fixture.display());
        take_over(&fixture);
    }
}

fn take_over(fixture: &Path) {
    // Keeps old jobs, so that they can be inspected.
    let setup = herdlet_e2e::agent::Setup::default().config("job_gc_threshold: 1000000h\n");
    let mut agent = Agent::prepare(setup);
    let kept = upgrade::unpack(fixture, &agent);
    let instance = agent.home.instance().unwrap();
    // A fixture's instance has a fixed name, so concurrent runs on a machine take turns.
    let alone = fs::File::create(std::env::temp_dir().join(format!("herdlet-fixture-{instance}"))).unwrap();
    alone.lock().unwrap();
    let records = runtime(&instance).join("attempts");
    fs::create_dir_all(&records).unwrap();
    // As if the records were from this boot, which is true for the supervisor that is started below.
    fs::copy("/proc/sys/kernel/random/boot_id", records.join(".boot")).unwrap();
    let mut living = Vec::new();
    for entry in fs::read_dir(kept).unwrap().flatten() {
        let record = Record::from_bytes(&fs::read(entry.path()).unwrap()).unwrap();
        if record.state == State::Running {
            living.push(entry.file_name().into_string().unwrap());
        } else {
            fs::copy(entry.path(), records.join(entry.file_name())).unwrap();
        }
    }
    let old: Vec<(String, Record)> = living
        .into_iter()
        .map(|attempt| {
            let record = start_as_0_1_does(&agent, &instance, &attempt);
            (attempt, record)
        })
        .collect();

    agent.launch();
    agent.cli(&["wait", "stays", "done"]).success();
    let members = agent.members();
    for (attempt, record) in &old {
        let is_it = |member: &host::Member| {
            format!("{}.{}.{}", member.alloc, member.task, member.attempt) == *attempt
        };
        let member = members.iter().find(|member| is_it(member));
        assert_eq!(
            member.map(|it| it.pid),
            Some(record.task.pid),
            "{attempt} is the same process\n{}",
            agent.log_tail()
        );
    }
    assert_eq!(members.len(), old.len());
    assert_closed_around(&agent, &old);
    // Including those that had ended, before the upgrade or while no agent ran.
    for alloc in fs::read_dir(agent.home.state().join("alloc")).unwrap().flatten() {
        let mode = alloc.metadata().unwrap().mode();
        assert_eq!(mode & 0o007, 0, "{} is open: {mode:o}", alloc.path().display());
    }
    assert_eq!(agent.alloc("done.g[0]").unwrap().status(), "complete");
    let ended = agent.until_alloc("ended.g[0]", "has failed", |alloc| alloc.failed("t"));
    assert!(ended.events("t").contains(&"Terminated".to_owned()), "{:?}", ended.events("t"));
    assert!(agent.alloc("gone.g[0]").is_none());
    let precious = agent.home.state().join("volumes/v/precious");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "kept\n");

    // The agent understands how the old supervisor records the end, and the next attempt has a new
    // supervisor.
    let stays = agent.single("stays.g[0]", "t");
    let (_, record) = old.iter().find(|(_, record)| record.task.pid == stays.pid).unwrap();
    host::signal(stays.pid, Signal::KILL);
    agent.until_alloc("stays.g[0]", "was started again", |alloc| {
        alloc.restarts("t") == 1 && alloc.state("t") == "running"
    });
    wait::until_true("the old supervisor is gone", || !host::is_alive(record.shim.pid));
    let next = agent.single("stays.g[0]", "t");
    assert_eq!(next.attempt, 2);
    agent.crash();
    assert_eq!(agent.single("stays.g[0]", "t"), next);
    agent.finish();
}

/// Older agents left directories of tasks open to every user. Asserts that they are closed, and that the
/// tasks can still use them.
fn assert_closed_around(agent: &Agent, old: &[(String, Record)]) {
    let allocs = agent.home.state().join("alloc");
    let run_as = |uid: u32, dir: &Path, script: &str| {
        let mut shell = Command::new("setpriv");
        shell.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]);
        shell.args(["/bin/sh", "-ec", script]).current_dir("/").env("d", dir);
        shell.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    for (attempt, _) in old {
        let mut parts = attempt.split('.');
        let (alloc, task) = (allocs.join(parts.next().unwrap()), parts.next().unwrap());
        assert!(!run_as(STRANGER, &alloc, "ls \"$d\""), "{attempt}: a stranger enters it");
        for below in ["alloc", "alloc/data", task] {
            assert!(
                !run_as(STRANGER, &alloc.join(below), "cd \"$d\""),
                "{attempt}: a stranger enters {below}"
            );
        }
        if let Some((uid, _)) = user_of(task) {
            let uses = "echo x > \"$d/$t/local/own\"; echo x > \"$d/alloc/data/$t\"; ls \"$d/root\"; ls \"$d/$t/secrets\"";
            let uses = format!("t={task}; {uses}");
            wait::until_true("its user can still use it", || run_as(uid, &alloc, &uses));
            assert!(!run_as(uid, &alloc, "echo x > \"$d/root/local/planted\""), "{attempt}");
        }
    }
}

/// A user without a task.
const STRANGER: u32 = 4_242;

/// Returns user and group of a task that is named after its user.
fn user_of(task: &str) -> Option<(u32, u32)> {
    match task {
        "daemon" => Some((1, 1)),
        "nobody" => Some((65534, 65534)),
        _ => None,
    }
}

/// Starts the fixture's supervisor with a task like the agent of version 0.1, and returns its record. A task
/// that is named after a user runs as that user.
fn start_as_0_1_does(agent: &Agent, instance: &str, attempt: &str) -> Record {
    let tree = host::cgroup2().unwrap().join("herdlet").join(instance);
    let (shims, cgroup) = (tree.join("shims"), tree.join(attempt));
    fs::create_dir_all(&shims).unwrap();
    fs::create_dir_all(&cgroup).unwrap();
    let mut parts = attempt.split('.');
    let (alloc, task) = (parts.next().unwrap(), parts.next().unwrap());
    let dir = agent.home.state().join("alloc").join(alloc);
    let mut spec = b"hls1".to_vec();
    let mut put = |tag: u16, value: &[u8]| {
        spec.extend_from_slice(&tag.to_le_bytes());
        spec.extend_from_slice(&u32::try_from(value.len()).unwrap().to_le_bytes());
        spec.extend_from_slice(value);
    };
    let (work, cgroup) = (format!("{}\0", dir.join(task).display()), format!("{}\0", cgroup.display()));
    put(1, format!("{attempt}\0").as_bytes());
    put(14, format!("{task}.stdout\0").as_bytes());
    put(15, format!("{task}.stderr\0").as_bytes());
    put(16, &10_u32.to_le_bytes());
    put(17, &10_000_000_u64.to_le_bytes());
    put(2, b"/bin/sleep\0");
    put(3, b"/bin/sleep\0");
    put(3, b"100000\0");
    put(5, work.as_bytes());
    if let Some((uid, gid)) = user_of(task) {
        put(6, &[uid.to_le_bytes(), gid.to_le_bytes()].concat());
    }
    put(12, cgroup.as_bytes());
    put(0, b"");
    let spec_file = agent.home.path().join("spec");
    fs::write(&spec_file, spec).unwrap();
    let programs = fs::read_dir(agent.home.state().join("bin")).unwrap().flatten().map(|entry| entry.path());
    let program = programs.into_iter().next().unwrap();
    let records = runtime(instance).join("attempts");
    // 0: nothing, 1: directory of logs, 2: directory of records, 3: launch specification.
    let script =
        "echo $$ > \"$1/cgroup.procs\"; exec 3<\"$5\" 1<\"$3\" 2<\"$4\" 0</dev/null; exec \"$0\" run \"$2\"";
    let mut child = Command::new("/bin/sh")
        .args(["-c", script])
        .arg(program)
        .arg(shims)
        .arg(attempt)
        .arg(dir.join("alloc/logs"))
        .arg(&records)
        .arg(spec_file)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let record = wait::until("the old supervisor has started its task", || {
        let record = Record::from_bytes(&fs::read(records.join(attempt)).ok()?).ok()?;
        (record.state == State::Running).then_some(record)
    });
    // It is a child of this test, and must not remain a zombie.
    std::thread::spawn(move || child.wait());
    record
}

#[test]
fn the_agent_is_replaced_under_load_and_no_task_notices() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("still", "service", "count: 5", &[sleeper("t", "")]));
    let still = agent.members();
    assert_eq!(still.len(), 5);
    let (over, updates) = (AtomicBool::new(false), AtomicU64::new(0));
    let peer = agent.peer();
    let dir = agent.home.path().to_owned();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seconds = 200_000;
            while !over.load(Ordering::Relaxed) {
                seconds += 1;
                let body =
                    serde_json::json!({ "files": [{ "name": "m.yaml", "text": busy(seconds) }] }).to_string();
                let headers = [("Content-Type", "application/json")];
                // No agent answers during a replacement.
                match http::request(&peer, "POST", "/v1/herdlet/apply", &headers, &body) {
                    Some(answer) if answer.status == 200 => {
                        updates.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(_) | None => wait::pause(std::time::Duration::from_millis(5)),
                }
            }
        });
        let _ends = Ends(&over);
        // Replaces the agent under load until enough updates were accepted, however long that takes here.
        for number in 0..1_000 {
            if number >= 6 && updates.load(Ordering::Relaxed) > 10 {
                break;
            }
            wait::pause(upgrade::PAUSE);
            agent.set_program(upgrade::install(&dir, number));
            // Like a service manager, or like a crash.
            if number % 2 == 0 {
                agent.terminate();
            } else {
                agent.kill();
            }
            agent.launch();
        }
    });
    let updates = updates.into_inner();
    assert!(updates > 10, "there was load: {updates} updates");
    let body = serde_json::json!({ "files": [{ "name": "m.yaml", "text": busy(300_000) }] }).to_string();
    let answer =
        http::request(&peer, "POST", "/v1/herdlet/apply", &[("Content-Type", "application/json")], &body);
    assert_eq!(answer.map(|answer| answer.status), Some(200));
    wait::until_true("only the last accepted version runs", || {
        let others: Vec<_> = agent.members().into_iter().filter(|member| !still.contains(member)).collect();
        matches!(others.as_slice(), [one] if host::arguments(one.pid).is_some_and(|words| words.contains(&"300000".to_owned())))
    });
    assert!(still.iter().all(|member| agent.members().contains(member)), "{}", agent.log_tail());
    agent.finish();
}

/// Sets the flag at the end, even if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The fixtures are of releases without templates and variables, so here this program replaces itself.
#[test]
fn an_upgrade_renders_nothing_again_and_keeps_variables() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/up", &["greeting=one"]);
    put(&agent, "nomad/jobs/up/g", &["greeting=none"]);
    let each = [
        template(&greeting("up"), "local/conf", ""),
        template(&format!("A={}\n", greeting("up")), "secrets/env", "env: true"),
        template("{{ timestamp }} {{ env \"node.unique.name\" }}", "local/time", "change_mode: signal"),
    ];
    let task = |name: &str, each: &[String], more: &str| format!("{}{}", recorder(name, each), more);
    let identity = "          identities: [{file: true}]\n";
    let probe = [template(&greeting("up/g"), "local/conf", "change_mode: noop")];
    agent.apply_and_wait(&job("up", "service", "", &[task("t", &each, identity), task("probe", &probe, "")]));
    let alloc = "up.g[0]";
    until_recorded(&agent, (alloc, "t"), &["start"]);
    let files = ["t/local/conf", "t/secrets/env", "t/local/time", "t/secrets/nomad_token"];
    // Of each attempt, the first process: it starts others all the time. Pids start again at their end.
    let processes = |agent: &Agent| {
        let mut members = agent.members();
        let started = |pid| (host::start_time(pid).unwrap_or(u64::MAX), pid);
        members.sort_by_key(|member| (member.task.clone(), member.attempt, started(member.pid)));
        members.dedup_by_key(|member| (member.task.clone(), member.attempt));
        members
    };
    let (before, members) = (marks(&agent, alloc, &files), processes(&agent));
    let variable =
        |agent: &Agent| agent.cli(&["var", "get", "-out", "json", "nomad/jobs/up"]).success().stdout;
    let stored = variable(&agent);
    let dir = agent.home.path().to_owned();
    for number in 0..3 {
        agent.set_program(upgrade::install(&dir, number));
        // Like a service manager, or like a crash.
        if number % 2 == 0 {
            agent.terminate();
        } else {
            agent.kill();
        }
        agent.launch();
        agent.cli(&["wait", "up"]).success();
        // The templates of the other task are rendered after those of the first.
        put(&agent, "nomad/jobs/up/g", &[&format!("greeting={number}")]);
        until_file(&agent, alloc, ("probe/local/conf", &number.to_string()));
        assert_eq!(marks(&agent, alloc, &files), before, "upgrade {number}");
        assert_eq!(
            (recorded(&agent, alloc, "t"), processes(&agent)),
            (vec!["start".to_owned()], members.clone())
        );
        assert_eq!(variable(&agent), stored);
        let secrets = task_api::secrets(&agent, &members[0].alloc, "t");
        let code = || task_api::status(&secrets, "/v1/var/nomad/jobs/up", &task_api::token(&secrets));
        wait::until_true("the task's socket is open", || code() == Some(200));
    }
    // The new program follows the data.
    put(&agent, "nomad/jobs/up", &["greeting=two"]);
    until_recorded(&agent, (alloc, "t"), &["start", "start"]);
    until_file(&agent, alloc, ("t/local/conf", "two"));
    agent.finish();
}

fn busy(seconds: u32) -> String {
    let task = format!(
        "        - name: t\n          driver: raw_exec\n          config: {{command: /bin/sleep, args: [\"{seconds}\"]}}\n"
    );
    job("busy", "service", "", &[task])
}
