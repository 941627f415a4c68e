//! The agent refuses state, config, tokens and sockets that another user has prepared or can change, and
//! warns of such manifests. An instance has only one agent, even if its state is copied.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use herdlet_e2e::{agent::Agent, host, ports, wait};
use rustix::process::Signal;

use crate::common::{TOKEN, is_root, job, shell, sleeper};

const NOBODY: u32 = 65_534;

/// A world-writable mode without the sticky bit.
const OPEN: u32 = 0o777;

fn give_away(path: &Path) {
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn make(path: PathBuf, mode: u32) -> PathBuf {
    fs::create_dir_all(&path).unwrap();
    set_mode(&path, mode);
    path
}

/// Returns an agent with these additional arguments that is not started.
fn prepared(arguments: &[&str]) -> Agent {
    let mut agent = Agent::prepare(Default::default());
    agent.set_arguments(arguments.iter().map(|argument| (*argument).to_owned()).collect());
    agent
}

/// Returns its arguments with another value for one of them.
fn with(agent: &Agent, flag: &str, value: &Path) -> Vec<String> {
    let mut arguments = agent.agent_arguments();
    let at = arguments.iter().position(|argument| argument == flag).unwrap();
    arguments[at + 1] = value.display().to_string();
    arguments
}

/// The advice if a parent directory is the problem, which must not be changed.
const ELSEWHERE: &str = "use a path on which only root can change every directory";

/// Asserts that the agent does not start, and names the path, its owner and a remedy.
#[track_caller]
fn assert_refused(agent: &Agent, at: &Path, repair: &str) {
    assert_refused_with(agent, &agent.agent_arguments(), at, repair);
}

#[track_caller]
fn assert_refused_with(agent: &Agent, arguments: &[String], at: &Path, repair: &str) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = agent.cli(&arguments);
    assert_ne!(ended.code, 0, "{ended:?}");
    let output = format!("{}{}", ended.stdout, ended.stderr);
    for part in [&*at.display().to_string(), "belongs to", "mode", repair] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
    let has_command = ["chown", "chmod"].iter().any(|command| output.contains(command));
    assert_eq!(has_command, repair.starts_with("ch"), "{output}");
}

#[test]
fn prepared_state_directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let agent = prepared(&[]);
    let victim = agent.home.write("victim", "precious");
    let state = make(agent.home.state(), 0o711);
    for name in ["lock", ".format.tmp", ".instance.tmp", "committed"] {
        symlink(&victim, state.join(name)).unwrap();
        give_away(&state.join(name));
    }
    give_away(&state);
    assert_refused(&agent, &state, "use a new directory that belongs to root");
    assert_eq!(fs::metadata(&state).unwrap().mode() & 0o7777, 0o711);
    // The directory is given to root, but not its contents.
    chown(&state, Some(0), Some(0)).unwrap();
    assert_refused(&agent, &state, "use a new directory that belongs to root");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!state.join("instance").exists() && !state.join("state.db").exists());
}

#[test]
fn replaceable_state_directory_is_refused() {
    if !is_root() {
        return;
    }
    // A parent directory that is writable for everybody, for a group, or owned by another user.
    let agent = prepared(&[]);
    let parent = make(agent.home.path().join("ground"), OPEN);
    let beneath = with(&agent, "--state-dir", &parent.join("deep/state"));
    assert_refused_with(&agent, &beneath, &parent, ELSEWHERE);
    assert!(!parent.join("deep").exists());
    set_mode(&parent, 0o775);
    chown(&parent, Some(0), Some(NOBODY)).unwrap();
    assert_refused_with(&agent, &beneath, &parent, ELSEWHERE);
    set_mode(&parent, 0o755);
    give_away(&parent);
    assert_refused_with(&agent, &beneath, &parent, ELSEWHERE);
    assert_refused_with(&agent, &beneath, &parent, "HERDLET_TRUSTED_USERS=nobody");
    // Another user's link in a sticky directory.
    chown(&parent, Some(0), Some(0)).unwrap();
    set_mode(&parent, 0o1777);
    make(agent.home.path().join("elsewhere"), 0o755);
    let link = parent.join("link");
    symlink("../elsewhere", &link).unwrap();
    give_away(&link);
    let beneath = with(&agent, "--state-dir", &link.join("state"));
    assert_refused_with(&agent, &beneath, &link, ELSEWHERE);
    assert!(!agent.home.path().join("elsewhere/state").exists());
    // Root's own link is acceptable.
    std::os::unix::fs::lchown(&link, Some(0), Some(0)).unwrap();
    starts_and_ends(&agent, &beneath, &agent.home.socket());
    assert!(agent.home.path().join("elsewhere/state/instance").exists());
    // Like `--state-dir /tmp`.
    assert_refused_with(
        &agent,
        &with(&agent, "--state-dir", &parent),
        &parent,
        "use a new directory below it",
    );
}

/// Asserts that an agent with these arguments starts, listens and exits.
#[track_caller]
fn starts_and_ends(agent: &Agent, arguments: &[String], socket: &Path) {
    let mut command = agent.command(arguments);
    let mut started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait::until_true("it listens", || socket.exists());
    host::signal(started.id(), Signal::TERM);
    assert!(started.wait().unwrap().success());
}

#[test]
fn replaceable_runtime_directory_or_socket_is_refused() {
    if !is_root() {
        return;
    }
    let mut agent = prepared(&[]);
    let open = make(agent.home.path().join("open"), OPEN);
    agent.set_arguments(vec!["--runtime-dir".to_owned(), open.display().to_string()]);
    assert_refused(&agent, &open, ELSEWHERE);
    agent.set_arguments(Vec::new());
    let socket = open.join("sock");
    let arguments = with(&agent, "--socket", &socket);
    assert_refused_with(&agent, &arguments, &open, ELSEWHERE);
    // In a sticky directory nobody else can replace it.
    set_mode(&open, 0o1777);
    starts_and_ends(&agent, &arguments, &socket);
}

#[test]
fn changeable_config_or_token_is_refused() {
    if !is_root() {
        return;
    }
    let [port] = ports::free();
    let mut agent = prepared(&[]);
    let config = agent.home.write("other.yaml", "datacenter: here\n");
    let with_config = vec!["--config".to_owned(), config.display().to_string()];
    agent.set_arguments(with_config.clone());
    set_mode(&config, 0o646);
    assert_refused(&agent, &config, "chmod o-w");
    set_mode(&config, 0o644);
    give_away(&config);
    assert_refused(&agent, &config, "chown -h root");
    chown(&config, Some(0), Some(0)).unwrap();
    let token = agent.home.write("token", &format!("{TOKEN}\n"));
    let mut arguments = with_config;
    let address = format!("127.0.0.1:{port}");
    for argument in ["--listen", &address, "--token-file", &token.display().to_string()] {
        arguments.push(argument.to_owned());
    }
    agent.set_arguments(arguments);
    set_mode(&token, 0o600);
    give_away(&token);
    assert_refused(&agent, &token, "chown -h root");
    // A group may read it, but not change it.
    chown(&token, Some(0), Some(NOBODY)).unwrap();
    set_mode(&token, 0o660);
    assert_refused(&agent, &token, "chmod g-w");
    set_mode(&token, 0o640);
    agent.launch();
    agent.terminate();
}

/// Files of Vault and of registries were used without a check, and `doctor` did not mention them.
#[test]
fn doctor_reports_changeable_files_of_vault_and_registries() {
    if !is_root() {
        return;
    }
    let agent = prepared(&[]);
    let authority = agent.home.write("vault.pem", "");
    let credentials = agent.home.write("docker.json", "{}");
    let config = agent.home.write(
        "agent.yaml",
        &format!(
            "vault: {{default: {{enabled: true, address: \"https://127.0.0.1:1\", ca_file: {}}}}}\ndrivers: {{docker: {{auth: {{config: {}}}}}}}\n",
            authority.display(),
            credentials.display()
        ),
    );
    let doctor = || agent.cli(&["doctor", "--config", &config.display().to_string()]);
    let reports = |path: &Path| {
        let output = doctor();
        let text = format!("{}{}", output.stdout, output.stderr);
        text.lines().any(|line| line.contains("failed to") && line.contains(&path.display().to_string()))
    };
    for path in [&authority, &credentials] {
        assert!(!reports(path));
        give_away(path);
        assert!(reports(path), "{:?}", doctor());
    }
}

#[test]
fn writers_of_manifests_or_volumes_are_reported() {
    if !is_root() {
        return;
    }
    let mut agent = prepared(&[]);
    let folder = make(agent.home.path().join("jobs.d"), 0o755);
    let theirs = folder.join("theirs.yaml");
    fs::write(&theirs, job("theirs", "service", "", &[sleeper("t", "")])).unwrap();
    give_away(&theirs);
    let way = make(agent.home.path().join("way"), OPEN);
    let data = make(way.join("data"), 0o755);
    let config = format!(
        "manifests: [{}]\nhost_volumes: [{{name: data, path: {}}}]\n",
        folder.display(),
        data.display()
    );
    let config = agent.home.write("mine.yaml", &config).display().to_string();
    agent.set_arguments(vec!["--config".to_owned(), config.clone()]);
    agent.launch();
    wait::until_true("the log warns about the file", || {
        agent.log().lines().any(|line| {
            line.contains("WARN") && line.contains(&*theirs.to_string_lossy()) && line.contains("uid 65534")
        })
    });
    wait::until_true("the log warns about the volume", || {
        agent
            .log()
            .lines()
            .any(|line| line.contains("WARN") && line.contains("everybody could") && line.contains("/way"))
    });
    // It is still obeyed: whose files these are is the operator's choice.
    agent.until_alloc("theirs.g[0]", "runs", |alloc| alloc.state("t") == "running");
    let state = agent.home.state().display().to_string();
    let doctor = ["doctor", "--config", &config, "--state-dir", &state];
    let stdout = agent.cli(&doctor).stdout;
    assert!(stdout.contains("ownership") && stdout.contains(&*theirs.to_string_lossy()), "{stdout}");
    // Many of them are one line in the log, and all of them are in the report.
    for n in 0..8 {
        let path = folder.join(format!("more-{n}.yaml"));
        fs::write(&path, "# nothing\n").unwrap();
        give_away(&path);
    }
    wait::until_true("the log warns about all files in one line", || {
        agent.log().lines().any(|line| {
            line.contains("9 files are used although other users can change them: more-0.yaml, more-1.yaml, ")
                && line.contains(" and 4 more; the first: ")
                && line.ends_with("`herdlet doctor` lists all")
        })
    });
    let stdout = agent.cli(&doctor).stdout;
    for n in 0..8 {
        assert!(stdout.contains(&format!("/more-{n}.yaml: it belongs to")), "{stdout}");
    }
    assert!(stdout.contains("it trusts root\n"), "{stdout}");
    fs::remove_file(&theirs).unwrap();
    wait::until_true("the job of the removed file is gone", || agent.members().is_empty());
    // A state directory that others can change is a failure.
    set_mode(&agent.home.path().join("way"), 0o755);
    let exposed = make(agent.home.path().join("exposed"), OPEN);
    let exposed = exposed.display().to_string();
    let output =
        agent.cli(&["doctor", "--config", &config, "--state-dir", &exposed, "--socket", "/run/none/sock"]);
    assert_ne!(output.code, 0, "{output:?}");
    assert!(output.stdout.contains("chmod o-w"), "{output:?}");
    // Regression: the running agent's directory was checked instead, and all was well.
    let socket = agent.home.socket().display().to_string();
    let output = agent.cli(&["doctor", "--config", &config, "--state-dir", &exposed, "--socket", &socket]);
    assert_ne!(output.code, 0, "{output:?}");
    for part in ["chmod o-w", &*format!("the checks above are for {exposed}")] {
        assert!(output.stdout.contains(part), "{part}: {output:?}");
    }
    agent.finish();
}

/// Like after `su`, which keeps the variable of the calling user.
#[test]
fn foreign_runtime_directory_is_named_with_a_remedy() {
    if !is_root() {
        return;
    }
    let agent = prepared(&[]);
    let theirs = make(agent.home.path().join("theirs"), 0o700);
    set_mode(agent.home.path(), 0o755);
    for command in ["agent", "doctor"] {
        let mut started = Command::new("setpriv");
        started.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        started.arg(agent.command(&[""; 0]).get_program()).arg(command);
        started.env("XDG_RUNTIME_DIR", &theirs).env("HOME", agent.home.path());
        let ended = started.stdin(Stdio::null()).output().unwrap();
        let output =
            String::from_utf8_lossy(&ended.stderr).into_owned() + &String::from_utf8_lossy(&ended.stdout);
        assert!(!ended.status.success(), "{output}");
        for part in ["XDG_RUNTIME_DIR", "belongs to root (uid 0)", "runs as nobody (uid 65534)", "Unset it"] {
            assert!(output.contains(part), "{part} is not in {output}");
        }
    }
}

#[test]
fn open_umask_opens_no_agent_file() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Default::default());
    agent.set_shell("umask 000");
    agent.launch();
    agent.apply_and_wait(&job("open", "service", "", &[shell("t", "exec sleep 100000", "")]));
    let instance = agent.home.instance().unwrap();
    let runtime = herdlet_e2e::home::runtime(&instance);
    let state = agent.home.state();
    let script = format!(
        "find {} {} -path {}/alloc -prune -o \\( -type f -o -type d \\) -perm /022 -print",
        runtime.display(),
        state.display(),
        state.display()
    );
    let found = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
    agent.finish();
}

/// Returns an agent with tasks, and a second one on a copy of its state, which is not started.
fn with_a_copy() -> (Agent, Agent) {
    let mut first = Agent::start();
    first.apply_and_wait(&job("kept", "service", "count: 2", &[sleeper("t", "")]));
    let copy = Agent::prepare(Default::default());
    let source = format!("{}/.", first.home.state().display());
    let copied =
        Command::new("cp").args(["-a", &source]).arg(make(copy.home.state(), 0o711)).status().unwrap();
    assert!(copied.success());
    (first, copy)
}

fn arguments_of(copy: &Agent, runtime: &str, more: &[&str]) -> Vec<String> {
    let mut arguments = copy.agent_arguments();
    arguments.extend(["--runtime-dir".to_owned(), copy.home.path().join(runtime).display().to_string()]);
    arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
    arguments
}

#[test]
fn copy_of_a_used_state_directory_is_refused() {
    if !is_root() {
        return;
    }
    let (first, mut copy) = with_a_copy();
    let members = first.members();
    let holder = format!("pid {}, state directory {}", first.pid(), first.home.state().display());
    let program = copy.command(&[""; 0]).get_program().to_owned();
    for (runtime, more, wrapped) in [
        ("run-a", &[][..], &[][..]),
        ("run-b", &["--cgroup-parent", "herdlet-test-copy"][..], &[][..]),
        // In a container with its own network and mounts, but the same cgroups.
        ("run-c", &[][..], &["unshare", "--net", "--mount", "--"][..]),
    ] {
        let arguments = arguments_of(&copy, runtime, more);
        let mut command = copy.command(&arguments);
        if let [wrapper, rest @ ..] = wrapped {
            let mut whole = Command::new(wrapper);
            whole.args(rest).arg(&program).args(&arguments);
            whole.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command = whole;
        }
        let ended = command.stdin(Stdio::null()).output().unwrap();
        let output =
            String::from_utf8_lossy(&ended.stderr).into_owned() + &String::from_utf8_lossy(&ended.stdout);
        assert!(!ended.status.success(), "{runtime}: {output}");
        assert!(output.contains(&holder), "{runtime}: {holder} is not in {output}");
        assert_eq!(first.members(), members, "{runtime}: {output}");
    }
    // Once the first one has exited, the copy may run.
    let mut first = first;
    first.cli(&["delete", "--wait", "kept"]).success();
    first.terminate();
    let runtime = copy.home.path().join("run-a").display().to_string();
    copy.set_arguments(vec!["--runtime-dir".to_owned(), runtime]);
    copy.launch();
    copy.until_alloc("kept.g[1]", "runs", |alloc| alloc.state("t") == "running");
    copy.finish();
}

/// The claims on an instance end with its agent, but its tasks keep running.
#[test]
fn copy_is_refused_while_tasks_run_without_their_agent() {
    if !is_root() {
        return;
    }
    let (mut first, mut copy) = with_a_copy();
    let members = first.members();
    first.kill();
    let original = first.home.state().display().to_string();
    let refused = |arguments: &[String], parts: &[&str]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = copy.cli(&arguments);
        let output = format!("{}{}", ended.stdout, ended.stderr);
        assert_ne!(ended.code, 0, "{output}");
        for part in parts {
            assert!(output.contains(part), "{part} is not in {output}");
        }
        assert_eq!(host::members(&first.home.instance().unwrap()), members, "{output}");
    };
    let is_copy = format!("it is a copy of {original}, or the original of it; ");
    let advice = format!("Start the agent with --state-dir {original} --runtime-dir ");
    let parts = [&*is_copy, "2 tasks still run", &*advice, "a new, empty --state-dir"];
    refused(&copy.agent_arguments(), &parts);
    refused(&arguments_of(&copy, "run-a", &[]), &parts);
    refused(&arguments_of(&copy, "run-b", &["--cgroup-parent", "herdlet-test-copy"]), &parts);
    // `doctor` fails on a machine on which the agent refuses to start.
    let state = copy.home.state().display().to_string();
    let socket = copy.home.socket().display().to_string();
    let doctor = copy.cli(&["doctor", "--state-dir", &state, "--socket", &socket]);
    assert_ne!(doctor.code, 0, "{doctor:?}");
    assert!(doctor.stdout.contains(&*is_copy), "{doctor:?}");
    // The first one does not start with another runtime directory beside its own tasks either.
    let mut elsewhere = first.agent_arguments();
    elsewhere.extend(["--runtime-dir".to_owned(), first.home.path().join("run-c").display().to_string()]);
    refused(&elsewhere, &["2 tasks still run whose records are in the runtime directory"]);
    first.launch();
    assert_eq!(first.members(), members);
    first.cli(&["delete", "--wait", "kept"]).success();
    first.terminate();
    // Nothing runs any more: the instance may move anywhere.
    let runtime = copy.home.path().join("run-d").display().to_string();
    copy.set_arguments(vec!["--runtime-dir".to_owned(), runtime]);
    copy.launch();
    copy.until_alloc("kept.g[1]", "runs", |alloc| alloc.state("t") == "running");
    copy.finish();
}

/// Records are removed or no longer trusted while supervisors and their tasks keep running.
#[test]
fn tasks_are_found_without_their_records() {
    if !is_root() {
        return;
    }
    let mut agent = prepared(&[]);
    let ground = make(agent.home.path().join("ground"), 0o755);
    let at = |name: &str| vec!["--runtime-dir".to_owned(), ground.join(name).display().to_string()];
    agent.set_arguments(at("first"));
    agent.launch();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    let (members, instance) = (agent.members(), agent.home.instance().unwrap());
    agent.kill();
    let refused = |agent: &mut Agent, parts: &[&str]| {
        agent.set_arguments(at("second"));
        let arguments = agent.agent_arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = agent.cli(&arguments);
        let output = format!("{}{}", ended.stdout, ended.stderr);
        assert_ne!(ended.code, 0, "{output}");
        for part in parts {
            assert!(output.contains(part), "{part} is not in {output}");
        }
        assert_eq!(host::members(&instance), members, "{output}");
    };
    let advice = format!("Start the agent with --runtime-dir {}/first as before", ground.display());
    let still = "1 task still runs whose records are in the runtime directory";
    set_mode(&ground.join("first"), OPEN);
    let repair = format!("first run `chmod o-w {}/first`", ground.display());
    refused(&mut agent, &[still, &advice, &repair]);
    set_mode(&ground.join("first"), 0o755);
    fs::remove_dir_all(ground.join("first")).unwrap();
    refused(&mut agent, &[still, &advice]);
    // Removing the stored location does not help either.
    fs::remove_file(agent.home.state().join("location")).unwrap();
    refused(&mut agent, &[still, &advice]);
    agent.set_arguments(at("first"));
    agent.launch();
    assert_eq!(agent.members(), members);
    agent.finish();
}

#[test]
fn copy_in_place_of_its_original_is_refused() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    let (members, instance) = (agent.members(), agent.home.instance().unwrap());
    agent.kill();
    let original = agent.home.path().join("old");
    fs::rename(agent.home.state(), &original).unwrap();
    let copied = Command::new("cp").arg("-a").arg(&original).arg(agent.home.state()).status().unwrap();
    assert!(copied.success());
    let arguments = agent.agent_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = agent.cli(&arguments);
    let output = format!("{}{}", ended.stdout, ended.stderr);
    assert_ne!(ended.code, 0, "{output}");
    let advice = format!("Start the agent with --state-dir {}", original.display());
    assert!(output.contains(&advice) && output.contains("1 task still runs"), "{output}");
    assert_eq!(host::members(&instance), members, "{output}");
    fs::remove_dir_all(agent.home.state()).unwrap();
    fs::rename(&original, agent.home.state()).unwrap();
    agent.launch();
    assert_eq!(agent.members(), members);
    agent.finish();
}

/// A chown of each entry, which messages may have advised, does not change deeper entries.
#[test]
fn a_job_and_keys_that_another_user_has_planted_are_refused() {
    if !is_root() {
        return;
    }
    let agent = prepared(&[]);
    let state = make(agent.home.state(), 0o711);
    for (dir, planted) in [("accepted", "default.e.json"), ("keys", "identity.p8"), ("keys", "identity.json")]
    {
        let planted = make(state.join(dir), 0o700).join(planted);
        fs::write(&planted, "{}").unwrap();
        give_away(&planted);
        assert_refused(&agent, &planted, "use a new directory that belongs to root");
        fs::remove_file(&planted).unwrap();
    }
    assert!(!state.join("instance").exists() && !state.join("state.db").exists());
}

#[test]
fn a_state_directory_that_was_moved_keeps_its_tasks() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    let (members, instance) = (agent.members(), agent.home.instance().unwrap());
    agent.kill();
    let moved = agent.home.path().join("moved");
    fs::rename(agent.home.state(), &moved).unwrap();
    let arguments = with(&agent, "--state-dir", &moved);
    fs::remove_file(agent.home.socket()).unwrap();
    let mut started = agent.command(&arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    wait::until_true("it listens", || agent.home.socket().exists());
    host::signal(started.id(), Signal::TERM);
    let mut log = String::new();
    std::io::Read::read_to_string(started.stderr.as_mut().unwrap(), &mut log).unwrap();
    assert!(started.wait().unwrap().success(), "{log}");
    assert!(log.contains("running tasks know only its old path"), "{log}");
    assert_eq!(host::members(&instance), members);
    fs::rename(&moved, agent.home.state()).unwrap();
    agent.launch();
    assert_eq!(agent.members(), members);
    agent.finish();
}

#[test]
fn squatted_instance_name_does_not_block_the_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    let member = agent.single("kept.g[0]", "t");
    let instance = agent.home.instance().unwrap();
    agent.kill();
    let name = format!("herdlet-instance-{instance}");
    let script = r#"use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0) || die;
        bind(S, pack_sockaddr_un("\0" . shift)) && listen(S, 1) || die;
        $| = 1; print "held"; sleep 1000"#;
    let nobody = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]).args(arguments);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut squatters = vec![nobody("/usr/bin/perl", &["-e", script, &name])];
    for tree in host::trees(&instance) {
        squatters.push(nobody(
            "flock",
            &["--no-fork", &tree.display().to_string(), "-c", "printf held; exec sleep 1000"],
        ));
    }
    let is_held = squatters.iter_mut().all(|squatter| {
        let mut held = [0; 4];
        std::io::Read::read_exact(squatter.stdout.as_mut().unwrap(), &mut held).is_ok()
    });
    if is_held {
        agent.launch();
        assert!(agent.log().contains("another user's process holds the socket name of this instance"));
    } else {
        herdlet_e2e::environment::leave_out("this needs perl and flock");
        agent.launch();
    }
    assert_eq!(agent.single("kept.g[0]", "t"), member);
    for squatter in &mut squatters {
        squatter.kill().unwrap();
        squatter.wait().unwrap();
    }
    agent.finish();
}
