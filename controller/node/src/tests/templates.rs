//! Templates of servers' jobs: their data comes from the servers.

use herdlet_api_types::variable::VariableKey;
use herdlet_nomad::wire::catalogue::ServiceInstance;
use herdlet_nomad_server::{Fault, Fields};

use super::*;

/// Servers that check tokens, and do not give up a node whose heartbeats a busy machine delays.
fn patient() -> Settings {
    Settings { tokens: true, outlive: true, ttl_min: Duration::from_secs(600), ..Settings::default() }
}

/// A template without delays.
fn template(path: &str, text: &str, change: &str) -> Json {
    json!({
        "EmbeddedTmpl": text, "DestPath": path, "ChangeMode": change,
        "ChangeSignal": if change == "signal" { "SIGHUP" } else { "" }, "Splay": 0, "Perms": "0644",
        "Wait": { "Min": 1_000_000, "Max": 2_000_000 }, "LeftDelim": "{{", "RightDelim": "}}",
    })
}

fn task(name: &str, templates: &Json) -> Json {
    json!({ "Name": name, "Driver": "mock", "Config": { "run_for": "1h" }, "Templates": templates })
}

fn job_of(id: &str, tasks: &Json) -> wire::Job {
    let group = json!({ "Name": "group", "Tasks": tasks });
    wire::Job::new(value(&json!({ "ID": id, "Type": "service", "TaskGroups": [group] })))
}

fn place_signed(cluster: &Cluster, node: &NodeId, job: &wire::Job, tasks: &[&str]) -> AllocId {
    cluster.write(|state| {
        let id = state.place(node, job, "group");
        state.sign_tasks(&id, tasks);
        id
    })
}

fn put(cluster: &Cluster, path: &str, text: &str) {
    cluster.write(|state| state.put_variable(path, &[("text", text)]));
}

fn file(path: &Path, alloc: &AllocId, name: &str) -> String {
    fs::read_to_string(path.join("alloc").join(alloc.to_string()).join(name)).unwrap_or_default()
}

async fn reads(path: &Path, alloc: &AllocId, name: &str, text: &str) {
    let reads = async {
        while file(path, alloc, name) != text {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(reads).await;
}

/// Waits for an event of the task with this in its message, as servers know it.
async fn told(cluster: &Cluster, alloc: &AllocId, kind: &str, text: &str) {
    let is_told = |state: &herdlet_nomad_server::state::State| {
        let task = state.allocs.get(alloc).and_then(|alloc| alloc.task_states.get("main"));
        task.is_some_and(|task| {
            task.events.iter().any(|event| event.kind == kind && event.display_message.contains(text))
        })
    };
    within(cluster.until(is_told)).await;
}

/// Reads of the method that servers may block, and others.
fn read(cluster: &Cluster, method: &str) -> (usize, usize) {
    let index = |request: &Value| request.get("MinQueryIndex").and_then(Value::as_u64);
    let is_blocking = |request: &Value| index(request).is_some_and(|index| index > 0);
    let requests = cluster.requests(method);
    let blocking = requests.iter().filter(|request| is_blocking(request)).count();
    (blocking, requests.len() - blocking)
}

const A: &str = r#"{{ with nomadVar "nomad/jobs/web" }}{{ .text }}{{ end }}"#;
const B: &str = r#"{{ with nomadVar "nomad/jobs/web/group" }}{{ .text }}{{ end }}"#;

#[tokio::test(flavor = "multi_thread")]
async fn variable_of_servers_is_waited_for_and_followed() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(patient());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let templates = json!([template("local/a", A, "signal"), template("secrets/b", B, "restart")]);
    let web = job_of("web", &json!([task("main", &templates)]));
    let alloc = place_signed(&cluster, &node, &web, &["main"]);
    told(&cluster, &alloc, "Template", "Missing: nomad/jobs/web, nomad/jobs/web/group").await;
    put(&cluster, "nomad/jobs/web", "first");
    put(&cluster, "nomad/jobs/web/group", "one");
    reaches(&cluster, &alloc, ClientStatus::Running).await;
    assert_eq!(file(dir.path(), &alloc, "main/local/a"), "first");

    put(&cluster, "nomad/jobs/web", "second");
    told(&cluster, &alloc, "Signaling", "Template re-rendered").await;
    assert_eq!(file(dir.path(), &alloc, "main/local/a"), "second");
    put(&cluster, "nomad/jobs/web/group", "two");
    told(&cluster, &alloc, "Restart Signaled", "Template with change_mode restart re-rendered").await;
    let restarted = |state: &herdlet_nomad_server::state::State| {
        let task = &state.allocs[&alloc].task_states["main"];
        task.state == wire::RunState::Running && task.restarts == 1
    };
    within(cluster.until(restarted)).await;

    let key = |path: &str| VariableKey { namespace: "default".to_owned(), path: path.to_owned() };
    let users = agent.context.renderer.users_of(&key("nomad/jobs/web/group"));
    let users: Vec<_> = users.into_iter().map(|((_, task), templates)| (task, templates)).collect();
    assert_eq!(users, [(0, [1].into())], "what `explain var` shows");

    // The next agent renders the same, and follows the variable.
    agent.stop().await;
    let before = cluster.alloc(&alloc).unwrap().task_states["main"].clone();
    let asked = read(&cluster, "Variables.Read");
    let (agent, _) = start(&cluster, dir.path()).await;
    let has_read = async {
        while read(&cluster, "Variables.Read").0 < asked.0 + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(has_read).await;
    let batch = place(&cluster, &node, &job("sum", "batch", json!({ "run_for": "10ms" })));
    reaches(&cluster, &batch, ClientStatus::Complete).await;
    let after = cluster.alloc(&alloc).unwrap().task_states["main"].clone();
    assert_eq!((after.started_at, after.restarts), (before.started_at, before.restarts));
    assert_eq!(after.events.len(), before.events.len(), "{:?}", after.events);
    put(&cluster, "nomad/jobs/web", "third");
    reads(dir.path(), &alloc, "main/local/a", "third").await;

    // Only the identity of the task was used, and the watches end with it.
    let secret = Identity::load_or_create(&dir.path().join("node"), None).unwrap().secret;
    let is_of_task = |request: &Value| {
        let token = request.get("AuthToken").and_then(Value::as_text).unwrap_or_default();
        token.starts_with(&format!("header.{alloc}-main-")) && token != secret.reveal()
    };
    assert!(cluster.requests("Variables.Read").iter().all(is_of_task));
    assert_eq!(agent.context.renderer.figures().queries, 2);
    cluster.stop(&alloc);
    reaches(&cluster, &alloc, ClientStatus::Complete).await;
    cluster.write(|state| state.collect(&alloc));
    let forgotten = async {
        while agent.context.renderer.figures().queries > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(forgotten).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_away_change_nothing() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(Settings { servers: 3, outlive: true, ..Settings::default() });
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    put(&cluster, "nomad/jobs/web", "first");
    let web = job_of("web", &json!([task("main", &json!([template("local/a", A, "noop")]))]));
    let alloc = place_signed(&cluster, &node, &web, &["main"]);
    reaches(&cluster, &alloc, ClientStatus::Running).await;
    let began = cluster.alloc(&alloc).unwrap().task_states["main"].started_at;
    agent.stop().await;

    // An agent that starts meanwhile keeps the output, and says what is missing.
    (0..3).for_each(|server| cluster.set_down(server, true));
    put(&cluster, "nomad/jobs/web", "second");
    let (agent, _) = start(&cluster, dir.path()).await;
    let id = super::super::runner::parse(&alloc).unwrap();
    let says = async {
        let reason = || agent.model.alloc(&id).map(|view| format!("{:?}", view.convergence));
        while !reason().is_some_and(|reason| reason.contains("servers cannot be reached since")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(says).await;
    assert_eq!(file(dir.path(), &alloc, "main/local/a"), "first");
    (0..3).for_each(|server| cluster.set_down(server, false));
    reads(dir.path(), &alloc, "main/local/a", "second").await;

    // Neither the loss of the leader nor another leader takes the watch away.
    cluster.lead(None);
    put(&cluster, "nomad/jobs/web", "third");
    cluster.lead(Some(2));
    reads(dir.path(), &alloc, "main/local/a", "third").await;
    let known = &cluster.alloc(&alloc).unwrap().task_states["main"];
    assert_eq!((known.started_at, known.restarts), (began, 0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_servers_do_not_give_is_named() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(patient());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    put(&cluster, "nomad/jobs/other", "secret");
    let text = r#"{{ with nomadVar "nomad/jobs/other" }}{{ .text }}{{ end }}"#;
    let web = job_of("web", &json!([task("main", &json!([template("local/a", text, "noop")]))]));
    let alloc = place_signed(&cluster, &node, &web, &["main"]);
    let why = r#"Missing: nomad/jobs/other; servers refuse nomad/jobs/other@default to task "main": Permission denied"#;
    told(&cluster, &alloc, "Template", why).await;
    assert!(read(&cluster, "Variables.Read").1 < 10, "not in a loop");
    assert_eq!(cluster.client_status(&alloc), ClientStatus::Pending);
    // A leader that is lost for a moment is no reason to wait longer than that.
    cluster.fault("Variables.Read", 2, &Fault::Error("No cluster leader".to_owned()));
    put(&cluster, "nomad/jobs/web", "first");
    let own = job_of("web", &json!([task("main", &json!([template("local/a", A, "noop")]))]));
    let own = place_signed(&cluster, &node, &own, &["main"]);
    reaches(&cluster, &own, ClientStatus::Running).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_servers_are_named_with_the_release_that_helps() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(Settings { fields: Fields::Of(1, 3), tokens: false, ..patient() });
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let web = job_of("web", &json!([task("main", &json!([template("local/a", A, "noop")]))]));
    let alloc = place(&cluster, &node, &web);
    told(&cluster, &alloc, "Template", "this needs Nomad 1.4 or later").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_with_one_variable_share_one_query() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(patient());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    put(&cluster, "nomad/jobs/web", "first");
    let names: Vec<String> = (0..10).map(|number| format!("t{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let templates = json!([template("local/a", A, "noop")]);
    let tasks: Vec<Json> = names.iter().map(|name| task(name, &templates)).collect();
    let web = job_of("web", &json!(tasks));
    let allocs: Vec<AllocId> = (0..20).map(|_| place_signed(&cluster, &node, &web, &names)).collect();
    for alloc in &allocs {
        reaches(&cluster, alloc, ClientStatus::Running).await;
    }
    for (alloc, name) in allocs.iter().flat_map(|alloc| names.iter().map(move |name| (alloc, name))) {
        reads(dir.path(), alloc, &format!("{name}/local/a"), "first").await;
    }
    // A slow machine may repeat a few; without sharing each task would have its own.
    let (blocking, own) = read(&cluster, "Variables.Read");
    assert!((1..20).contains(&blocking) && (200..300).contains(&own), "{blocking} and {own}");
    assert_eq!(agent.context.renderer.figures().queries, 1);
    put(&cluster, "nomad/jobs/web", "second");
    for (alloc, name) in allocs.iter().flat_map(|alloc| names.iter().map(move |name| (alloc, name))) {
        reads(dir.path(), alloc, &format!("{name}/local/a"), "second").await;
    }
    let (blocking, own) = read(&cluster, "Variables.Read");
    assert!(
        blocking < 20 && (400..600).contains(&own),
        "each task reads once for itself: {blocking} and {own}"
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_servers_are_followed() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(patient());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let text = r#"{{ range nomadService "blue.db" }}{{ .Address }}:{{ .Port }} {{ .Tags }} {{ end }}"#;
    let names = r#"{{ range nomadServices }}{{ .Name }} {{ end }}"#;
    let vars = r#"{{ range nomadVarList "nomad/jobs" }}{{ .Path }} {{ end }}"#;
    let templates = json!([
        template("local/db", text, "noop"),
        template("local/names", names, "noop"),
        template("local/vars", vars, "noop")
    ]);
    put(&cluster, "nomad/jobs/other", "hidden");
    let web = job_of("web", &json!([task("main", &templates)]));
    let alloc = place_signed(&cluster, &node, &web, &["main"]);
    reaches(&cluster, &alloc, ClientStatus::Running).await;
    assert_eq!(
        (&*file(dir.path(), &alloc, "main/local/db"), &*file(dir.path(), &alloc, "main/local/vars")),
        ("", "")
    );
    let instance = |namespace: &str, id: &str, tag: &str| ServiceInstance {
        id: id.to_owned(),
        service_name: "db".to_owned(),
        namespace: namespace.to_owned(),
        address: "10.0.0.1".to_owned(),
        port: 5_432,
        tags: vec![tag.to_owned()],
        ..ServiceInstance::default()
    };
    cluster.write(|state| {
        state.register_services(vec![
            instance("default", "1", "blue"),
            instance("default", "2", "green"),
            instance("other", "3", "blue"),
        ])
    });
    reads(dir.path(), &alloc, "main/local/db", "10.0.0.1:5432 [blue] ").await;
    reads(dir.path(), &alloc, "main/local/names", "db ").await;
    put(&cluster, "nomad/jobs/web", "visible");
    reads(dir.path(), &alloc, "main/local/vars", "nomad/jobs/web ").await;
    cluster.write(|state| state.remove_services(|(_, id), _| id == "1"));
    reads(dir.path(), &alloc, "main/local/db", "").await;
    agent.stop().await;
}

/// A `secret` block reads the servers' variable with the identity of its task, once.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_servers_are_waited_for_and_read_once() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(patient());
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let secrets =
        json!([{ "Name": "db", "Provider": "nomad", "Path": "nomad/jobs/web", "Config": null, "Env": null }]);
    let task = json!([{ "Name": "main", "Driver": "mock", "Config": { "run_for": "1h", "stdout_string": "${secret.db.text}" },
        "Secrets": secrets }]);
    let alloc = place_signed(&cluster, &node, &job_of("web", &task), &["main"]);
    told(&cluster, &alloc, "Template", "Missing: nomad/jobs/web").await;
    put(&cluster, "nomad/jobs/web", "hunter2");
    reaches(&cluster, &alloc, ClientStatus::Running).await;
    assert!(file(dir.path(), &alloc, "main/private/secrets.json").contains("hunter2"));
    let is_of_task = |request: &Value| {
        let token = request.get("AuthToken").and_then(Value::as_text).unwrap_or_default();
        token.starts_with(&format!("header.{alloc}-main-"))
    };
    assert!(cluster.requests("Variables.Read").iter().all(is_of_task));
    assert_eq!(agent.context.renderer.figures().queries, 0, "it is not watched any more");
    let shown = cluster.read(|state| format!("{:?}", state.allocs[&alloc].task_states));
    assert!(!shown.contains("hunter2"), "{shown}");
    agent.stop().await;
}
