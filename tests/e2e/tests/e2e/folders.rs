//! Reconciling a folder of manifests: new, removed and broken files, replaced links, missing folders.

use std::time::Duration;

use herdlet_e2e::{
    agent::{Agent, Setup},
    host, http, wait,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{is_root, job, shell, sleeper};

#[test]
fn a_folder_of_manifests_is_kept_true() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    agent.set_arguments(vec!["--manifests".into(), agent.home.manifests().display().to_string()]);
    agent.home.write("manifests/one.yaml", &job("one", "service", "", &[sleeper("t", "")]));
    agent.launch();
    let folder = agent.home.manifests();
    let one = agent.single("one.g[0]", "t");
    std::fs::write(folder.join("two.yaml"), job("two", "service", "", &[sleeper("t", "")])).unwrap();
    let two = agent.single("two.g[0]", "t");
    // A faulty file changes neither its own job nor others.
    std::fs::write(folder.join("two.yaml"), "apiVersion: herdlet/v1\nkind: Jop\n").unwrap();
    wait::until_true("the status names the invalid file", || agent.log().contains("two.yaml"));
    wait::pause(Duration::from_millis(300));
    assert!(host::is_alive(one.pid) && host::is_alive(two.pid));
    std::fs::remove_file(folder.join("one.yaml")).unwrap();
    wait::until_true("the job of the removed file is stopped", || !host::is_alive(one.pid));
    assert!(host::is_alive(two.pid));
    std::fs::remove_file(folder.join("two.yaml")).unwrap();
    wait::until_true("the other job is stopped too", || !host::is_alive(two.pid));
    agent.finish();
}

/// A job `name` whose task prints its version.
fn version(name: &str, version: &str) -> String {
    job(name, "service", "", &[shell("t", &format!("echo version {version}; exec sleep 1000"), "")])
}

/// `wait` returned before the agent had read the file, and reported the version before it.
#[test]
fn a_wait_includes_a_file_that_was_written_just_before() {
    let mut agent = Agent::prepare(Setup::default());
    agent.set_arguments(vec!["--manifests".into(), agent.home.manifests().display().to_string()]);
    agent.home.write("manifests/web.yaml", &version("web", "0"));
    agent.launch();
    let file = agent.home.manifests().join("web.yaml");
    for number in ["1", "2", "3"] {
        std::fs::write(&file, version("web", number)).unwrap();
        agent.cli(&["wait", "web"]).success();
        let versions = agent.cli(&["get", "versions", "web", "-o", "name"]).success().stdout;
        assert_eq!(versions.lines().next(), Some(number), "{versions}");
        assert_eq!(agent.cli(&["status", "--check"]).code, 0);
    }
    std::fs::remove_file(&file).unwrap();
    agent.cli(&["wait", "web", "--for", "deleted"]).success();
    agent.finish();
}

#[test]
fn rolled_back_job_is_held_until_its_file_changes() {
    let mut agent = Agent::prepare(Setup::default());
    agent.set_arguments(vec!["--manifests".into(), agent.home.manifests().display().to_string()]);
    agent.home.write("manifests/web.yaml", &version("web", "good"));
    agent.launch();
    let folder = agent.home.manifests();
    let runs = |agent: &Agent, number: &str, text: &str| {
        agent.until_printed(&["get", "jobs", "-o", "json"], |output| {
            output.contains(&format!("\"version\": {number}"))
                || output.contains(&format!("\"version\":{number}"))
        });
        agent.until_printed(&["logs", "web"], |output| output.contains(text));
    };
    runs(&agent, "0", "version good");
    std::fs::write(folder.join("web.yaml"), version("web", "bad")).unwrap();
    runs(&agent, "1", "version bad");
    let file = folder.join("web.yaml").display().to_string();
    let stdout = agent.cli(&["rollback", "web", "--wait"]).success().stdout;
    let why =
        format!("rolled back; {file} defines another version and takes effect when its definition changes");
    assert!(stdout.contains(&why), "{stdout}");
    let is_held = |agent: &Agent| {
        let status = agent.cli(&["status"]).success().stdout;
        assert!(status.contains("held") && status.contains(&why), "{status}");
        assert!(agent.cli(&["status", "web"]).success().stdout.contains(&format!("held: {why}")));
        for verb in ["explain", "describe"] {
            let shown = agent.cli(&[verb, "web"]).success().stdout;
            assert!(shown.contains(&format!("held: {why}")), "{verb}: {shown}");
        }
        assert!(agent.cli(&["get", "jobs"]).success().stdout.contains("held"));
        assert_eq!(agent.cli(&["status", "--check"]).code, 2, "the machine is not as its folder");
        assert_eq!(agent.metric("herdlet_job_held", "job_name=\"web\""), 1.0);
        let events = agent.cli(&["get", "events", "web"]).success().stdout;
        assert!(events.lines().any(|line| line.contains("held") && line.contains(&why)), "{events}");
        let versions = agent.cli(&["get", "versions", "web", "-o", "name"]).success().stdout;
        assert_eq!(versions.lines().next(), Some("2"), "{versions}");
    };
    is_held(&agent);
    // Both files are read at once: when the other one's job runs, the touched file was read.
    std::fs::write(folder.join("web.yaml"), version("web", "bad")).unwrap();
    std::fs::write(folder.join("other.yaml"), version("other", "1")).unwrap();
    agent.until_running("other.g[0]", "t");
    is_held(&agent);
    agent.crash();
    is_held(&agent);
    assert_eq!(agent.terminate().code(), Some(0));
    agent.launch();
    is_held(&agent);
    std::fs::write(folder.join("web.yaml"), version("web", "fixed")).unwrap();
    runs(&agent, "3", "version fixed");
    let status = agent.cli(&["status"]).success().stdout;
    assert!(!status.contains("held"), "{status}");
    let events = agent.cli(&["get", "events", "web"]).success().stdout;
    assert!(events.contains("web.yaml is in force again"), "{events}");
    std::fs::remove_file(folder.join("web.yaml")).unwrap();
    std::fs::remove_file(folder.join("other.yaml")).unwrap();
    agent.finish();
}

#[test]
fn folder_link_is_followed_to_its_current_target() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    let ground = agent.home.path().join("releases");
    for (release, name) in [("1", "one"), ("2", "two")] {
        std::fs::create_dir_all(ground.join(release)).unwrap();
        let text = job(name, "service", "", &[sleeper("t", "")]);
        std::fs::write(ground.join(release).join("job.yaml"), text).unwrap();
    }
    let link = ground.join("current");
    std::os::unix::fs::symlink("1", &link).unwrap();
    agent.set_arguments(vec!["--manifests".into(), link.display().to_string()]);
    agent.launch();
    let one = agent.single("one.g[0]", "t");
    std::os::unix::fs::symlink("2", ground.join("next")).unwrap();
    std::fs::rename(ground.join("next"), &link).unwrap();
    let two = agent.single("two.g[0]", "t");
    wait::until_true("the jobs of the link's former target are stopped", || !host::is_alive(one.pid));
    // A recreated directory is empty for a moment.
    std::fs::rename(ground.join("2"), ground.join("away")).unwrap();
    wait::until_true("the status reports the missing folder", || agent.log().contains("cannot be listed"));
    std::fs::create_dir(ground.join("2")).unwrap();
    wait::until_true("the status reports the empty folder", || {
        agent.log().contains("is another directory than before")
    });
    assert!(host::is_alive(two.pid));
    std::fs::remove_dir(ground.join("2")).unwrap();
    std::fs::rename(ground.join("away"), ground.join("2")).unwrap();
    std::fs::remove_file(ground.join("2/job.yaml")).unwrap();
    wait::until_true("the jobs of removed files are stopped", || !host::is_alive(two.pid));
    agent.finish();
}

#[test]
fn missing_folder_is_reported_once_and_followed_later() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    let folder = agent.home.path().join("later");
    agent.set_arguments(vec!["--manifests".to_owned(), folder.display().to_string()]);
    agent.launch();
    assert_eq!(http::get(&agent.peer(), "/readyz").unwrap().status, 200);
    let complaints = |agent: &Agent| -> Vec<String> {
        let of_it = |line: &&str| line.contains("ERROR") && line.contains("later");
        agent.log().lines().filter(of_it).map(str::to_owned).collect()
    };
    wait::until_true("the status reports it", || !complaints(&agent).is_empty());
    // Longer than the interval between searches for it.
    wait::pause(Duration::from_secs(6));
    let messages = complaints(&agent);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].contains("No such file"), "{messages:?}");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.yaml"), job("late", "service", "", &[sleeper("t", "")])).unwrap();
    let member = agent.single("late.g[0]", "t");
    // Removing the folder again removes no job.
    std::fs::rename(&folder, agent.home.path().join("away")).unwrap();
    wait::until_true("missed", || complaints(&agent).len() == 2);
    assert_eq!(agent.members(), [member]);
    agent.finish();
}

/// A mount over a folder hides it, but its watch reports nothing.
#[test]
fn folder_mounted_over_is_read() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    let over = agent.home.path().join("over");
    let folder = over.join("jobs");
    for (dir, name) in [(&folder, "one"), (&agent.home.path().join("other"), "two")] {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("job.yaml"), job(name, "service", "", &[sleeper("t", "")])).unwrap();
    }
    agent.set_arguments(vec!["--manifests".into(), folder.display().to_string()]);
    agent.launch();
    let one = agent.single("one.g[0]", "t");
    // Not on the folder itself but on its parent: a disk that is mounted late.
    mount("none", &over, "tmpfs", MountFlags::empty(), None).unwrap();
    wait::until_true("the status reports the missing folder", || agent.log().contains("cannot be listed"));
    std::fs::rename(agent.home.path().join("other/job.yaml"), agent.home.path().join("job.yaml")).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(agent.home.path().join("job.yaml"), folder.join("two.yaml")).unwrap();
    let two = agent.single("two.g[0]", "t");
    assert!(host::is_alive(one.pid), "a disk that hides a file removes no job");
    unmount(&over, UnmountFlags::DETACH).unwrap();
    wait::until_true("the folder below the mount is read again", || !host::is_alive(two.pid));
    assert!(host::is_alive(one.pid));
    std::fs::remove_file(folder.join("job.yaml")).unwrap();
    wait::until_true("the job of the mounted folder is stopped", || !host::is_alive(one.pid));
    agent.finish();
}
