//! The files of an allocation, and stopping and replacing an allocation, from the command line.

use herdlet_e2e::{agent::Agent, wait};

use crate::common::{is_root, job, shell};

#[test]
fn files_are_listed_and_an_allocation_is_replaced() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "echo hello > local/greeting; ln -s /etc/passwd local/link; exec sleep 100000";
    agent.apply_and_wait(&job("web", "service", "", &[shell("t", script, "kill_timeout: 5s")]));
    let listed = || agent.cli(&["fs", "ls", "web/t", "local"]).success().stdout;
    wait::until_true("the file exists", || listed().contains("link"));
    assert!(listed().contains("greeting"), "{}", listed());
    assert_eq!(agent.cli(&["fs", "cat", "web", "t/local/greeting"]).success().stdout, "hello\n");
    assert!(agent.cli(&["fs", "stat", "web.g[0]", "alloc/logs"]).success().stdout.contains("logs/"));
    for (path, fragment) in
        [("local/link", "links are not followed"), ("secrets", "prohibited"), ("../../x", "escapes")]
    {
        let refused = agent.cli(&["fs", "cat", "web/t", path]);
        assert_eq!(refused.code, 1, "{path}");
        assert!(refused.stderr.contains(fragment), "{path}: {}", refused.stderr);
    }

    let old = agent.alloc("web.g[0]").unwrap().id();
    let output = agent.cli(&["stop", "web.g[0]"]).success().stdout;
    assert_eq!(
        output,
        "web.g[0] stopping; its job creates another one if resources and constraints permit\n"
    );
    wait::until_true("the allocation is replaced", || {
        agent.alloc("web.g[0]").is_some_and(|alloc| alloc.id() != old)
    });
    agent.cli(&["wait", "web"]).success();
    agent.finish();
}
