//! The network namespace of an attempt: its task and all commands in it are in the namespace, also under the next agent.

use herdlet_driver::NetworkSpace;
use herdlet_network::namespace::{Namespace, Pins};

use super::*;

#[tokio::test]
async fn task_and_its_commands_share_a_network() {
    if !is_root() {
        return;
    }
    for bench in Bench::both() {
        let pins = Pins::in_dir(bench.path("netns"));
        pins.keep("a", &Namespace::new().unwrap()).unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(pins.path("a")).unwrap());
        let expected = format!("net:[{inode}]");
        let network = Some(NetworkSpace { path: pins.path("a"), hostname: None });
        let config =
            TaskConfig { network, ..bench.shell("readlink /proc/self/ns/net > namespace; exec sleep 1000") };
        let look: Vec<String> = ["readlink", "/proc/self/ns/net"].map(str::to_owned).into();
        let first = bench.agent();
        first.driver.start(config.clone()).await.unwrap();
        assert_eq!(bench.line("namespace").await, expected);
        let done = first.driver.exec(&id(1), &look, DEADLINE).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), expected);
        drop(first);
        let second = bench.agent();
        assert_eq!(second.recover(Some(config)).await, Recovered::Running(Started::default()));
        let done = second.driver.exec(&id(1), &look, DEADLINE).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), expected);
        bench.close(second).await;
        pins.remove("a").unwrap();
    }
}

/// The namespace is being made again: the start is repeated, and the attempt keeps its number.
#[tokio::test]
async fn missing_network_is_retried() {
    if !is_root() {
        return;
    }
    for bench in Bench::both() {
        let pins = Pins::in_dir(bench.path("netns"));
        let network = Some(NetworkSpace { path: pins.path("a"), hostname: None });
        let config = TaskConfig { network, ..bench.shell("exit 5") };
        let agent = bench.agent();
        let error = agent.driver.start(config.clone()).await.unwrap_err();
        assert_eq!(error.class(), herdlet_driver::FailureClass::Retry, "{}", error.why());
        pins.keep("a", &Namespace::new().unwrap()).unwrap();
        assert_eq!(agent.run(config).await.code, 5);
        bench.close(agent).await;
        pins.remove("a").unwrap();
    }
}
