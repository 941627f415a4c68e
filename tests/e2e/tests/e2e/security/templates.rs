//! Templates are rendered by the agent, with the rights of the task: a hostile task or user of the machine can use them
//! neither to read nor to write anything else.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    command::{self, Running, User},
    wait,
};

use crate::{
    common::{is_root, job, shell},
    templates::{QUICK, greeting, path_of, put, template, templates, until_file},
};

const SECRET: &str = "planted-secret-of-the-machine";

/// A file that only root may read.
fn victim(agent: &Agent, name: &str) -> String {
    let path = agent.home.path().join(name);
    fs::write(&path, SECRET).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

fn start() -> Agent {
    let agent = Agent::start_with(Setup::default().config(QUICK));
    // The victims are reached as far as their own rights allow.
    fs::set_permissions(agent.home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    agent
}

/// A task of `nobody` that runs until it is stopped; `before` is the script of a task of the same user that comes first.
fn after(before: &str, each: &[String]) -> [String; 2] {
    [
        shell("before", before, "user: nobody\nlifecycle: {hook: prestart}"),
        shell("t", "exec sleep 100000", &format!("user: nobody\nkill_timeout: 5s\n{}", templates(each))),
    ]
}

const ONCE: &str = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";

#[test]
fn outputs_are_read_by_nobody_else() {
    if !is_root() {
        return;
    }
    let mut agent = start();
    put(&agent, "nomad/jobs/read", &[&format!("greeting={SECRET}")]);
    let each = [
        template(&greeting("read"), "secrets/open", "perms: \"0666\""),
        template(&format!("A={}", greeting("read")), "secrets/env", "env: true"),
        template(&greeting("read"), "local/open", "perms: \"0666\""),
    ];
    let own = shell(
        "t",
        "test \"$A\" = \"$(cat secrets/open)\" && test \"$A\" = \"$(cat local/open)\" && exec sleep 100000",
        &format!("user: nobody\nkill_timeout: 5s\n{}", templates(&each)),
    );
    let other = shell("other", "exec sleep 100000", "user: daemon\nkill_timeout: 5s");
    agent.apply_and_wait(&job("read", "service", ONCE, &[own, other]));
    let dir = path_of(&agent, "read.g[0]", "t");
    let reads = |user: &str, file: &str| {
        let script = format!("exec setpriv --reuid={user} --regid=nogroup --clear-groups cat $a/{file}");
        let mut command = command::prepare(&agent.home, User::Same, Path::new("/bin/sh"), &["-c", &script]);
        command.env("a", &dir);
        Running::start(command).finish().stdout.contains(SECRET)
    };
    for file in ["secrets/open", "secrets/env", "local/open", "private/templates.json"] {
        assert!(!reads("bin", file), "a user of the machine reads {file}");
        assert!(reads("root", file), "{file} does not exist");
    }
    assert!(reads("nobody", "secrets/open") && !reads("nobody", "private/templates.json"));
    // Another task of the allocation shares `local`, as it does with files of the task itself.
    for file in ["secrets/open", "secrets/env", "private/templates.json"] {
        let read = agent.cli(&["exec", "read", "--task", "other", "--", "cat", &format!("../t/{file}")]);
        assert!(read.code != 0 && !read.stdout.contains(SECRET), "{file}: {read:?}");
    }
    agent.finish();
}

#[test]
fn links_at_destinations_lead_nowhere() {
    if !is_root() {
        return;
    }
    let mut agent = start();
    let victim = victim(&agent, "victim");
    let folder = agent.home.path().join("folder");
    fs::create_dir(&folder).unwrap();
    put(&agent, "nomad/jobs/links", &["greeting=one"]);
    // All tasks of the allocation may write to this directory.
    let plant =
        format!("set -e; cd ../alloc/data; ln -s {victim} file; ln -s {} dir; mkfifo fifo", folder.display());
    let each = [
        template(&greeting("links"), "alloc/data/file", "change_mode: noop"),
        template(&greeting("links"), "alloc/data/fifo", "change_mode: noop"),
        template(&greeting("links"), "local/file", "change_mode: noop"),
    ];
    agent.apply_and_wait(&job("links", "service", ONCE, &after(&plant, &each)));
    for file in ["alloc/data/file", "alloc/data/fifo", "t/local/file"] {
        until_file(&agent, "links.g[0]", (file, "one"));
        let path = path_of(&agent, "links.g[0]", file);
        assert!(fs::symlink_metadata(&path).unwrap().is_file(), "{file} was replaced");
    }
    // Planted again under the running task.
    let file = path_of(&agent, "links.g[0]", "t/local/file");
    fs::remove_file(&file).unwrap();
    symlink(&victim, &file).unwrap();
    put(&agent, "nomad/jobs/links", &["greeting=two"]);
    until_file(&agent, "links.g[0]", ("t/local/file", "two"));
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    assert_eq!(fs::read_to_string(&victim).unwrap(), SECRET);
    // A link as a directory on the way is refused.
    put(&agent, "nomad/jobs/way", &["greeting=one"]);
    let each = [template(&greeting("way"), "alloc/data/dir/file", "change_mode: noop")];
    agent.apply(&job("way", "service", ONCE, &after(&plant, &each)));
    let failed = agent.until_alloc("way.g[0]", "failed", |alloc| alloc.status() == "failed");
    let events = failed.0["TaskStates"]["t"]["Events"].to_string();
    assert!(events.contains("symbolic link"), "{events}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    agent.finish();
}

#[test]
fn a_template_reads_only_files_of_its_task() {
    if !is_root() {
        return;
    }
    let mut agent = start();
    let victim = victim(&agent, "victim");
    // A file of another allocation.
    let more = "user: daemon\nkill_timeout: 5s";
    let script = format!("echo {SECRET} > local/own; exec sleep 100000");
    agent.apply_and_wait(&job("other", "service", "", &[shell("t", &script, more)]));
    let other = path_of(&agent, "other.g[0]", "t/local/own");
    wait::until_true("it has written its file", || other.exists());
    let plant = format!(
        "set -e; cd ../alloc/data; ln -s {victim} link; ln -s {} other; ln -s ../../t/private/templates.json private; mkfifo fifo; ln -s /etc etc; ln {victim} hard || true",
        other.display()
    );
    for (name, path) in [
        ("link", "alloc/data/link"),
        ("other", "alloc/data/other"),
        ("private-link", "alloc/data/private"),
        ("fifo", "alloc/data/fifo"),
        ("dir-link", "alloc/data/etc/shadow"),
        ("private", "private/templates.json"),
        ("outside", "../../../../../../../etc/shadow"),
        ("absolute", "/etc/shadow"),
        ("absolute-other", &other.display().to_string()),
        ("victim", &victim),
        ("dir", "alloc/data"),
    ] {
        let each = [template(&format!("{{{{ file \"{path}\" }}}}"), "local/out", "")];
        let name = format!("read-{name}");
        agent.apply(&job(&name, "service", ONCE, &after(&plant, &each)));
        // A path from the root of the task is below its directory, where no such file appears.
        let is_refused = |text: &str| text.contains("Template failed") || text.contains("Missing: file");
        let alloc = agent.until_alloc(&format!("{name}.g[0]"), "is refused", |alloc| {
            is_refused(&alloc.0["TaskStates"]["t"].to_string())
        });
        let shown = alloc.0.to_string();
        assert!(!shown.contains(SECRET) && !shown.contains("root:"), "{name}: {shown}");
        assert!(!path_of(&agent, &format!("{name}.g[0]"), "t/local/out").exists(), "{name}");
    }
    // The text of a template is read in the same way.
    let source = "templates: [{source: alloc/data/link, destination: local/out}]";
    let t = shell("t", "exec sleep 100000", &format!("user: nobody\n{source}"));
    let before = shell("before", &plant, "user: nobody\nlifecycle: {hook: prestart}");
    agent.apply(&job("source", "service", ONCE, &[before, t]));
    agent.until_alloc("source.g[0]", "failed", |alloc| alloc.status() == "failed");
    // A hard link to a file of root is waited for only if the kernel let the task make it; it is then the task's file.
    let protected = fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap();
    if protected.trim() == "1" {
        let each = [template("{{ file \"alloc/data/hard\" }}", "local/out", "")];
        agent.apply(&job("hard", "service", ONCE, &after(&plant, &each)));
        agent.until_printed(&["explain", "hard"], |text| {
            text.contains("waits for") && text.contains("alloc/data/hard")
        });
    }
    assert!(!agent.log().contains(SECRET));
    agent.finish();
}

#[test]
fn a_task_reads_no_variable_of_others() {
    if !is_root() {
        return;
    }
    let mut agent = start();
    put(&agent, "nomad/jobs/theirs", &[&format!("greeting={SECRET}")]);
    put(&agent, "nomad/jobs/mine/g/other", &[&format!("greeting={SECRET}")]);
    put(&agent, "top", &[&format!("greeting={SECRET}")]);
    agent
        .cli(&["var", "put", "-namespace", "prod", "nomad/jobs/mine", &format!("greeting={SECRET}")])
        .success();
    for (at, text) in [
        greeting("theirs"),
        greeting("mine/g/other"),
        "{{ with nomadVar \"top\" }}{{ .greeting }}{{ end }}".to_owned(),
        "{{ with nomadVar \"nomad/jobs/mine@prod\" }}{{ .greeting }}{{ end }}".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        let each = [template(text, "local/out", "")];
        let name = if at == 0 { "mine".to_owned() } else { format!("mine-{at}") };
        let text =
            after("true", &each).map(|task| task.replace("nomad/jobs/mine", &format!("nomad/jobs/{name}")));
        agent.apply(&job(&name, "service", ONCE, &text));
        let failed = agent.until_alloc(&format!("{name}.g[0]"), "failed", |alloc| alloc.status() == "failed");
        let shown = failed.0.to_string();
        assert!(shown.contains("may read only nomad/jobs") && !shown.contains(SECRET), "{name}: {shown}");
        agent.cli(&["delete", "--wait", &name]).success();
    }
    // A list shows only what the task may read.
    put(&agent, "nomad/jobs/list", &["greeting=one"]);
    let each = [template("{{ range nomadVarList }}{{ .Path }} {{ end }}", "local/out", "")];
    agent.apply(&job("list", "service", ONCE, &after("true", &each)));
    agent.cli(&["wait", "list"]).success();
    until_file(&agent, "list.g[0]", ("t/local/out", "nomad/jobs/list "));
    let log = agent.log();
    let parts = ["operation=\"read\"", "path=\"nomad/jobs/theirs\"", "result=\"refused: ", "task t of "];
    assert!(log.lines().any(|line| parts.iter().all(|part| line.contains(part))), "{log}");
    agent.finish();
}
