//! Signals that do not end an agent: SIGHUP reloads, and the others are logged.

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::User,
    home::Home,
    host, ports, wait,
};
use rustix::process::Signal;

use crate::common::{is_root, job, shell, sleeper, start_run};

#[track_caller]
fn until_log_has(agent: &Agent, text: &str) {
    wait::until_true(text, || agent.log().contains(text));
}

#[test]
fn signals_of_other_programs_do_not_end_the_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    for (signal, name) in [
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::VTALARM, "SIGVTALRM"),
        (Signal::PROF, "SIGPROF"),
        (Signal::IO, "SIGIO"),
        (Signal::POWER, "SIGPWR"),
    ] {
        host::signal(agent.pid(), signal);
        until_log_has(&agent, &format!("{name} has no meaning for the agent and is ignored"));
    }
    assert!(!agent.has_ended());
    agent.cli(&["status", "--check"]).success();
    agent.finish();
}

#[test]
fn sighup_reloads_level_token_and_folders() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    let (folder, token) = (agent.home.path().join("jobs.d"), agent.home.path().join("token"));
    std::fs::create_dir(&folder).unwrap();
    let write_token = |text: &str| {
        std::fs::write(&token, text).unwrap();
        std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    write_token("first-token-0123456789");
    let [port] = ports::free();
    let config = |level: &str, name: &str| {
        format!(
            "log_level: {level}\nname: {name}\nlisten: 127.0.0.1:{port}\ntoken_file: {}\nmanifests: [{}]\n",
            token.display(),
            folder.display()
        )
    };
    let path = agent.home.write("config.yaml", &config("info", "one"));
    agent.set_arguments(vec!["--config".to_owned(), path.display().to_string()]);
    agent.launch();
    std::fs::write(folder.join("kept.yaml"), job("kept", "service", "", &[sleeper("t", "")])).unwrap();
    agent.until_running("kept.g[0]", "t");

    let address = format!("http://127.0.0.1:{port}");
    let status = |file: &std::path::Path| {
        let file = file.display().to_string();
        agent.cli(&["--addr", &address, "--token-file", &file, "status"]).code
    };
    let old = agent.home.write("old-token", "first-token-0123456789");
    assert_eq!(status(&old), 0);
    write_token("second-token-0123456789");
    agent.home.write("config.yaml", &config("debug", "two"));
    host::signal(agent.pid(), Signal::HUP);
    until_log_has(&agent, "reloaded folders=1");
    until_log_has(&agent, "changed settings that take effect at the next start of the agent: name");
    until_log_has(&agent, "DEBUG");
    assert_eq!(status(&token), 0, "the new token is valid");
    assert_ne!(status(&old), 0, "the old token is not");

    // Regression: the new token was valid although the config was refused.
    agent.home.write("config.yaml", "log_level: loud\n");
    write_token("third-token-0123456789");
    host::signal(agent.pid(), Signal::HUP);
    until_log_has(&agent, "; nothing was changed");
    let second = agent.home.write("second-token", "second-token-0123456789");
    assert_eq!(status(&second), 0, "the token in force is valid");
    assert_ne!(status(&token), 0, "the new token is not");
    agent.cli(&["status", "--check"]).success();
    std::fs::remove_file(folder.join("kept.yaml")).unwrap();
    wait::until_true("the job of the folder is removed", || agent.allocs().is_empty());
    agent.finish();
}

#[test]
fn closed_terminal_ends_a_private_run() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Same);
    let file =
        home.write("m.yaml", &job("fleeting", "service", "", &[shell("t", "echo here; sleep 100000", "")]));
    let running = start_run(&home, User::Same, &[&file]);
    running.until_stdout("here");
    running.signal(Signal::HUP);
    let ended = running.finish();
    assert_eq!(ended.code, 130, "{ended:?}");
    home.until_no_trace();
}
