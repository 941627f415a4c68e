//! The examples that need a program of the machine: a Java, an emulator.

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::User,
    home::Home,
    ports,
    program::example,
};

use crate::common::{has, is_root, patient, start_run};

#[test]
fn java_makes_a_key_in_a_root_of_its_own() {
    if !is_root() || !has("java") {
        return;
    }
    let home = Home::new(User::Same);
    let output = start_run(&home, User::Same, &[&example("java")]).finish().success();
    let printed = format!("{}{}", output.stdout, output.stderr);
    assert!(printed.contains("CN=web") && printed.contains("/local/keys"), "{printed}");
    home.until_no_trace();
}

#[test]
fn qemu_is_switched_off_after_a_crash_of_the_agent() {
    if !is_root() || !has("qemu-system-x86_64") {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    // Switched off by its button however slow this machine is.
    agent.apply_and_wait(&patient("qemu").replace("kill_timeout: 30s", "kill_timeout: 5m"));
    agent.until_printed(&["logs", "qemu/guest"], |text| text.contains("up\n"));
    let before = agent.single("qemu.vm[0]", "guest");
    let port = agent.alloc("qemu.vm[0]").unwrap().port("ssh").unwrap();
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    agent.kill();
    agent.launch();
    assert_eq!(agent.single("qemu.vm[0]", "guest").pid, before.pid);
    let refused = agent.cli(&["exec", "qemu", "--task", "guest", "--", "true"]);
    assert!(refused.code != 0 && refused.stderr.contains("executing commands"), "{}", refused.stderr);
    agent.cli(&["stop", "qemu"]).success();
    agent.until_printed(&["logs", "qemu/guest"], |text| text.contains("bye\n"));
    agent.finish();
}
