//! Renders with a real store of variables, a catalogue and files.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use herdlet_api_types::{
    Duration as Span,
    job::{Secret, TemplateChange, TemplateSource, TemplateWait},
    variable::{VariableItems, VariableKey},
};
use herdlet_base::observation::Class;
use herdlet_variables::{Actor, Check, KeySource, Store, Variables};

use super::*;
use crate::{
    secrets::SecretValues,
    sources::{ConsulRights, NodeNames},
    watches::Consumer,
};

mod vault;

struct Bench {
    renderer: Arc<Renderer>,
    variables: Arc<Variables>,
    task: TaskTemplates,
    dir: tempfile::TempDir,
}

fn block(destination: &str, text: &str) -> Block {
    Block {
        source: TemplateSource::Inline(text.to_owned()),
        destination: destination.to_owned(),
        perms: Block::PERMS_DEFAULT,
        uid: None,
        gid: None,
        env: false,
        on_change: TemplateChange::Restart,
        splay: Span::ZERO,
        wait: None,
        left_delimiter: "{{".to_owned(),
        right_delimiter: "}}".to_owned(),
        error_on_missing_key: false,
        once: false,
    }
}

impl Bench {
    fn id(&self) -> (AllocId, u16) {
        (self.task.key.0, self.task.key.1)
    }

    fn new(templates: Vec<Block>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let dirs = Dirs { task: dir.path().join("alloc/t"), shared: dir.path().join("alloc/alloc") };
        for inner in ["state", "alloc/t/local", "alloc/t/secrets", "alloc/t/private", "alloc/alloc"] {
            fs::create_dir_all(dir.path().join(inner)).unwrap();
        }
        let store = Store::open(&state, KeySource::choose(None, None, &state.join("keys"))).unwrap();
        let variables = Arc::new(Variables::new(store));
        let sources = sources(&variables);
        let reader = Reader {
            namespace: "default".to_owned(),
            job: "web".to_owned(),
            group: "g".to_owned(),
            task: "t".to_owned(),
            alloc: "a".to_owned(),
            access: Access::Agent,
            consul: ConsulRights::default(),
        };
        let task = TaskTemplates {
            key: (AllocId::from_hash([1; 16]), 0, Consumer::Templates),
            reader,
            vault: VaultRights::Absent,
            templates,
            env: [("NAME".to_owned(), "value".to_owned())].into(),
            dirs,
            root: None,
            owner: None,
            secrets_mib: 1,
            before: Vec::new(),
        };
        Self { renderer: Arc::new(Renderer::new(sources, Settings::default())), variables, task, dir }
    }

    /// Goes on with another store, as after a restart.
    fn replace_store(&mut self, store: Store) {
        self.variables = Arc::new(Variables::new(store));
        self.renderer = Arc::new(Renderer::new(sources(&self.variables), Settings::default()));
    }

    async fn put(&self, path: &str, items: &[(&str, &str)]) {
        let key = VariableKey { namespace: "default".to_owned(), path: path.to_owned() };
        let items = items.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let check = (Check::Nothing, String::new());
        self.variables.put(&Actor::agent(), key, VariableItems(items), check).await.unwrap();
    }

    async fn render(&self) -> Result<Rendering, RenderError> {
        self.renderer.render(self.task.clone()).await
    }

    /// Renders as the next time: with the outputs of this one.
    async fn done(&mut self) -> Vec<u64> {
        let Rendering::Done { outputs, .. } = self.render().await.unwrap() else { panic!("data is missing") };
        self.task.before.clone_from(&outputs);
        outputs
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("alloc/t").join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

fn sources(variables: &Arc<Variables>) -> Sources {
    Sources {
        variables: Arc::clone(variables),
        catalogue: Arc::new(BuiltIn::default()),
        node: NodeNames::default(),
        consuls: BTreeMap::new(),
    }
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[tokio::test]
async fn data_is_waited_for_and_named() {
    let bench = Bench::new(vec![
        block("local/a", r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }} {{ env "NAME" }}"#),
        block("local/b", "no data"),
    ]);
    let missing = bench.render().await.unwrap();
    let expected = Rendering::Missing {
        on: "nomad/jobs/web".to_owned(),
        outdated_since_ns: None,
        recheck: Recheck::Reported,
        upkeep: Upkeep::default(),
    };
    assert_eq!(missing, expected);
    assert!(!bench.path("local/b").exists(), "the files are those of one render");
    bench.put("nomad/jobs/web", &[("user", "admin")]).await;
    assert!(matches!(bench.render().await, Ok(Rendering::Done { .. })));
    assert_eq!((bench.text("local/a").as_str(), bench.text("local/b").as_str()), ("admin value", "no data"));
}

#[tokio::test]
async fn at_most_three_names_are_listed() {
    let text = (0..5).map(|number| format!("{{{{ file \"local/{number}\" }}}}")).collect::<String>();
    let bench = Bench::new(vec![block("local/a", &text)]);
    let Ok(Rendering::Missing { on, recheck: Recheck::Files, .. }) = bench.render().await else {
        panic!("files")
    };
    assert_eq!(on, "file local/0, file local/1, file local/2 and 2 more");
}

#[tokio::test]
async fn equal_outputs_write_nothing() {
    let mut bench =
        Bench::new(vec![block("local/a", "{{ timestamp }}"), block("local/b", "{{ env \"NAME\" }}")]);
    let first = bench.done().await;
    let (path, before) = (bench.path("local/a"), inode(&bench.path("local/a")));
    // The task's own change of the file stays too: nothing has changed since the last render.
    fs::write(bench.path("local/b"), "the task's own").unwrap();
    assert_eq!(bench.done().await, first, "the time is that of the last render");
    assert_eq!(inode(&path), before);
    assert_eq!(bench.text("local/b"), "the task's own");
    // Only what differs is written.
    bench.task.env.insert("NAME".to_owned(), "other".to_owned());
    let second = bench.done().await;
    assert_ne!(second[1], first[1]);
    assert_eq!(bench.text("local/b"), "other");
    fs::remove_file(&path).unwrap();
    let third = bench.done().await;
    assert!(path.exists(), "a lost file is written again");
    assert_eq!(third[1], second[1]);
}

#[tokio::test]
async fn lost_data_keeps_the_last_output() {
    let mut bench =
        Bench::new(vec![block("local/a", r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }}"#)]);
    bench.put("nomad/jobs/web", &[("user", "admin")]).await;
    bench.done().await;
    let key = VariableKey { namespace: "default".to_owned(), path: "nomad/jobs/web".to_owned() };
    bench.variables.delete(&Actor::agent(), key.clone(), Check::Nothing).await.unwrap();
    let Ok(Rendering::Missing { outdated_since_ns: since @ Some(_), .. }) = bench.render().await else {
        panic!("missing")
    };
    assert_eq!(bench.text("local/a"), "admin");
    let again = bench.render().await.unwrap();
    assert!(
        matches!(again, Rendering::Missing { outdated_since_ns, .. } if outdated_since_ns == since),
        "{again:?}"
    );
    // The same data is back, and is lost again.
    bench.put("nomad/jobs/web", &[("user", "admin")]).await;
    bench.done().await;
    bench.variables.delete(&Actor::agent(), key, Check::Nothing).await.unwrap();
    let again = bench.render().await.unwrap();
    assert!(
        matches!(again, Rendering::Missing { outdated_since_ns, .. } if outdated_since_ns > since),
        "{again:?}"
    );
    fs::remove_file(bench.path("local/a")).unwrap();
    let gone = bench.render().await.unwrap();
    assert!(
        matches!(gone, Rendering::Missing { outdated_since_ns: None, .. }),
        "nothing is left to keep: {gone:?}"
    );
}

#[tokio::test]
async fn a_task_reads_only_its_own_variables() {
    let bench =
        Bench::new(vec![block("local/a", r#"{{ with nomadVar "nomad/jobs/other" }}{{ .user }}{{ end }}"#)]);
    bench.put("nomad/jobs/other", &[("user", "secret")]).await;
    let error = bench.render().await.unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
    assert!(error.to_string().contains("local/a"), "{error}");
    let listing = vec![block("local/a", r#"{{ range nomadVarList "nomad/jobs" }}{{ .Path }} {{ end }}"#)];
    let mut bench = Bench { task: TaskTemplates { templates: listing, ..bench.task.clone() }, ..bench };
    bench.put("nomad/jobs/web/g", &[("user", "admin")]).await;
    bench.done().await;
    assert_eq!(bench.text("local/a"), "nomad/jobs/web/g ");
}

#[tokio::test]
async fn variables_of_the_environment_are_kept_for_the_start() {
    let mut env = block("secrets/env", "A=1\nB=\"{{ env \"NAME\" }}\"\n");
    env.env = true;
    let mut bench = Bench::new(vec![env.clone(), block("local/a", "A=2")]);
    bench.done().await;
    let variables = template_variables(&bench.task.dirs).unwrap();
    let expected = [("A", "1"), ("B", "value")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(variables, expected.into());
    // A reboot empties `private`: the next render writes it again.
    fs::remove_file(bench.path("private/templates.json")).unwrap();
    assert!(!bench.renderer.is_there(bench.task.clone()).await.unwrap());
    bench.done().await;
    assert_eq!(template_variables(&bench.task.dirs).unwrap().len(), 2);
    env.source = TemplateSource::Inline("password".to_owned());
    let wrong = TaskTemplates { templates: vec![env], before: Vec::new(), ..bench.task.clone() };
    let error = bench.renderer.render(wrong).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "render secrets/env: its output is not a list of variables: line 1: expected NAME=value"
    );
}

/// A power cut lost the content of a file that was believed to be the last output.
#[tokio::test]
async fn files_that_a_power_cut_has_emptied_are_written_again() {
    let mut bench = Bench::new(vec![block("local/a", "{{ env \"NAME\" }}"), block("local/b", "b")]);
    let first = bench.done().await;
    let record = bench.path("private/templates.json");
    let kept = inode(&bench.path("local/b"));
    let another_boot = fs::read_to_string(&record).unwrap().replacen("\"boot\":", "\"boot\":1", 1);
    // Root's `private` is empty after a reboot; that of others is on the disk.
    for after in [None, Some(another_boot)] {
        match after {
            None => fs::remove_file(&record).unwrap(),
            Some(text) => fs::write(&record, text).unwrap(),
        }
        assert!(bench.renderer.is_there(bench.task.clone()).await.unwrap(), "nothing is lost yet");
        fs::write(bench.path("local/a"), "").unwrap();
        assert!(!bench.renderer.is_there(bench.task.clone()).await.unwrap());
        assert_eq!(bench.done().await, first);
        assert_eq!(bench.text("local/a"), "value");
        assert_eq!(inode(&bench.path("local/b")), kept, "what is not lost is not written again");
        // From now on the task may change it.
        fs::write(bench.path("local/a"), "the task's own").unwrap();
        bench.done().await;
        assert_eq!(bench.text("local/a"), "the task's own");
        fs::write(bench.path("local/a"), "value").unwrap();
    }
}

#[tokio::test]
async fn rights_are_those_of_the_template() {
    let mut own = block("local/deep/er/a", "x");
    own.perms = 0o4640;
    let mut bench = Bench::new(vec![own]);
    bench.done().await;
    let mode = fs::metadata(bench.path("local/deep/er/a")).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o640, "without bits that change the user");
}

#[tokio::test]
async fn a_file_is_the_template() {
    let mut from_file = block("local/a", "");
    from_file.source = TemplateSource::File("local/a.tpl".to_owned());
    let mut bench = Bench::new(vec![from_file]);
    let error = bench.render().await.unwrap_err();
    assert!(error.to_string().starts_with("read the template local/a.tpl: there is no such file"), "{error}");
    fs::write(bench.path("local/a.tpl"), "{{ env \"NAME\" }}!").unwrap();
    bench.done().await;
    assert_eq!(bench.text("local/a"), "value!");
}

#[tokio::test]
async fn once_rendered_templates_are_not_rendered_again() {
    let mut once = block("local/a", "{{ env \"NAME\" }}");
    once.once = true;
    let mut bench = Bench::new(vec![once]);
    let first = bench.done().await;
    bench.task.env.insert("NAME".to_owned(), "other".to_owned());
    assert_eq!(bench.done().await, first);
    assert_eq!(bench.text("local/a"), "value");
    assert_eq!(bench.renderer.figures().queries, 0);
    fs::remove_file(bench.path("local/a")).unwrap();
    bench.done().await;
    assert_eq!(bench.text("local/a"), "other", "a lost file is rendered again");
}

/// The next task that is due.
async fn due(changed: &mut mpsc::Receiver<DataChange>) -> TaskKey {
    loop {
        match changed.recv().await.expect("a report") {
            DataChange::Due(task) => return task,
            DataChange::Begun(_) | DataChange::Flushed(_) => {}
        }
    }
}

/// After `var put`, `wait` returned before the change was noticed.
#[tokio::test]
async fn a_flush_follows_the_changes_before_it() {
    let text = r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }}"#;
    let mut bench = Bench::new(vec![block("local/a", text)]);
    bench.put("nomad/jobs/web", &[("user", "admin")]).await;
    bench.done().await;
    let (sender, mut changed) = mpsc::channel(8);
    let renderer = Arc::clone(&bench.renderer);
    let following = tokio::spawn(async move { renderer.follow(sender).await });
    for number in 0..100 {
        let began = async {
            bench.put("nomad/jobs/web", &[("user", &number.to_string())]).await;
            bench.renderer.flush().await;
        };
        let reports = async {
            let mut begun = Vec::new();
            loop {
                match changed.recv().await.expect("a report") {
                    DataChange::Begun(task) => begun.push(task),
                    DataChange::Due(task) => panic!("{task:?} is due before its wait of 5 s is over"),
                    DataChange::Flushed(done) => {
                        done.send(()).expect("the caller waits");
                        return begun;
                    }
                }
            }
        };
        let ((), begun) = tokio::join!(began, reports);
        let expected = if number == 0 { vec![bench.task.key] } else { Vec::new() };
        assert_eq!(begun, expected, "one report of a wait that goes on");
    }
    following.abort();
}

#[tokio::test]
async fn changes_of_used_data_are_reported() {
    let mut quick = block("local/a", r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }}"#);
    quick.wait = Some(herdlet_api_types::job::TemplateWait { min: Span::ZERO, max: Span::ZERO });
    let mut bench = Bench::new(vec![quick]);
    let (sender, mut changed) = mpsc::channel(8);
    let renderer = Arc::clone(&bench.renderer);
    let following = tokio::spawn(async move { renderer.follow(sender).await });
    let missing = bench.render().await.unwrap();
    assert!(matches!(missing, Rendering::Missing { .. }));
    bench.put("nomad/jobs/other", &[("user", "x")]).await;
    bench.put("nomad/jobs/web", &[("user", "admin")]).await;
    assert_eq!(due(&mut changed).await, bench.task.key, "what was missing is there");
    bench.done().await;
    bench.put("nomad/jobs/web", &[("user", "root")]).await;
    assert_eq!(due(&mut changed).await, bench.task.key);
    bench.done().await;
    assert_eq!(bench.text("local/a"), "root");
    bench.renderer.forget(bench.task.key.0);
    assert_eq!(bench.renderer.figures().queries, 0);
    following.abort();
}

#[tokio::test]
async fn hostile_templates_end_in_bounds() {
    let endless = r#"{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}"#;
    let queries = r#"{{ range loop 5000 }}{{ file (printf "local/%d" .) }}{{ end }}"#;
    let huge =
        r#"{{ range loop 1000000 }}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{{ end }}"#;
    for text in [endless, queries, huge, r#"{{ file "../../../etc/passwd" }}"#, r#"{{ plugin "id" }}"#] {
        let bench = Bench::new(vec![block("local/a", text)]);
        let error = bench.render().await.unwrap_err();
        assert_eq!(error.class(), Class::Fatal, "{text}: {error}");
        assert!(!bench.path("local/a").exists());
    }
}

#[tokio::test]
async fn users_of_a_variable_are_known_by_template() {
    let mut bench = Bench::new(vec![
        block("local/a", r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }}"#),
        block("local/b", "constant"),
        block("local/c", r#"{{ range nomadVarList "nomad/jobs/web" }}{{ .Path }}{{ end }}"#),
    ]);
    let users = |bench: &Bench, path: &str| {
        let key = VariableKey { namespace: "default".to_owned(), path: path.to_owned() };
        bench.renderer.users_of(&key)
    };
    let Ok(Rendering::Missing { .. }) = bench.render().await else { panic!("missing") };
    assert_eq!(users(&bench, "nomad/jobs/web"), [(bench.id(), [0, 2].into())].into(), "it waits for it");
    bench.put("nomad/jobs/web", &[("user", "admin")]).await;
    bench.done().await;
    assert_eq!(users(&bench, "nomad/jobs/web"), [(bench.id(), [0, 2].into())].into());
    assert_eq!(users(&bench, "nomad/jobs/web/g"), [(bench.id(), [2].into())].into());
    assert!(users(&bench, "nomad/jobs/other").is_empty());
}

/// It would be waited for without end: no file is written while data is missing.
#[tokio::test]
async fn the_output_of_another_template_is_no_input() {
    let bench = Bench::new(vec![block("local/a", "a"), block("local/b", r#"{{ file "./local/a" }}"#)]);
    let error = bench.render().await.unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
    let text = std::error::Error::source(&error).unwrap().to_string();
    assert!(text.contains("is the output of a template of the same task"), "{text}");
}

/// Variables that fitted into `private` only once could never be replaced.
#[tokio::test]
async fn variables_have_a_bounded_size() {
    let env = |length: usize| Block {
        env: true,
        ..block("local/env", &format!(r#"A={{{{ sprig_repeat {length} "x" }}}}"#))
    };
    let rendered = async |length: usize| Bench::new(vec![env(length)]).render().await;
    assert!(matches!(rendered((192 << 10) - 1).await, Ok(Rendering::Done { .. })));
    let error = rendered(192 << 10).await.unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
    let expected = "render templates with `env`: their variables have 196609 bytes, at most 196608 are kept; write large values to files";
    assert_eq!(error.to_string(), expected);
}

/// Data that went back to their last state found the outputs of the failed render, and left them.
#[tokio::test]
async fn outputs_of_a_failed_render_do_not_stay() {
    let text = |name| format!(r#"{{{{ with nomadVar "nomad/jobs/web" }}}}{{{{ .{name} }}}}{{{{ end }}}}"#);
    let env = Block { env: true, ..block("secrets/env", &format!("A={}", text("a"))) };
    let mut bench = Bench::new(vec![block("local/a", &text("a")), env, block("local/b", &text("b"))]);
    bench.put("nomad/jobs/web", &[("a", "one"), ("b", "1")]).await;
    let first = bench.done().await;
    fs::remove_file(bench.path("local/b")).unwrap();
    fs::create_dir(bench.path("local/b")).unwrap();
    bench.put("nomad/jobs/web", &[("a", "two"), ("b", "2")]).await;
    bench.render().await.unwrap_err();
    assert_eq!(bench.text("local/a"), "two", "it fails at a later file");
    let variables = template_variables(&bench.task.dirs).unwrap();
    assert_eq!(variables["A"], "one", "variables are those of the last complete render");
    fs::remove_dir(bench.path("local/b")).unwrap();
    bench.put("nomad/jobs/web", &[("a", "one"), ("b", "1")]).await;
    assert_eq!(bench.done().await, first);
    assert_eq!(["local/a", "secrets/env", "local/b"].map(|file| bench.text(file)), ["one", "A=one", "1"]);
    let inode_before = inode(&bench.path("local/a"));
    bench.done().await;
    assert_eq!(inode(&bench.path("local/a")), inode_before, "nothing is written twice");
}

/// A key file that was missing for a moment failed tasks for good.
#[tokio::test]
async fn a_source_that_can_not_be_read_is_waited_for() {
    let mut bench =
        Bench::new(vec![block("local/a", r#"{{ with nomadVar "nomad/jobs/web" }}{{ .a }}{{ end }}"#)]);
    bench.put("nomad/jobs/web", &[("a", "one")]).await;
    let keys = bench.dir.path().join("state/keys");
    let away = bench.dir.path().join("away");
    fs::rename(&keys, &away).unwrap();
    let store = Store::open(&bench.dir.path().join("state"), KeySource::choose(None, None, &keys));
    bench.replace_store(store.unwrap());
    let Rendering::Missing { on, recheck, .. } = bench.render().await.unwrap() else {
        panic!("it has no key")
    };
    assert_eq!(recheck, Recheck::Servers);
    assert!(on.starts_with("nomad/jobs/web; ") && on.contains("keys/variables is missing"), "{on}");
    fs::rename(&away, &keys).unwrap();
    bench.done().await;
    assert_eq!(bench.text("local/a"), "one");
}

fn secret(name: &str, path: &str) -> Secret {
    let (name, path) = (name.to_owned(), path.to_owned());
    Secret { name, provider: Secret::VARIABLES.to_owned(), path, namespace: None, env: BTreeMap::new() }
}

/// Variables of `secret` blocks are watched until all of them are there, and never again.
#[tokio::test]
async fn variables_of_secrets_are_waited_for_and_read_once() {
    let bench = Bench::new(Vec::new());
    let mut task = bench.task.clone();
    task.key.2 = Consumer::Secrets;
    let secrets = [
        secret("db", "nomad/jobs/web"),
        secret("more", "nomad/jobs"),
        Secret { provider: "plugin".to_owned(), ..secret("other", "x") },
    ];
    let read = async || bench.renderer.secret_variables(task.clone(), &secrets).await;
    bench.put("nomad/jobs", &[("a", "1")]).await;
    let Ok(SecretVariables::Missing { on, recheck: Recheck::Reported, .. }) = read().await else {
        panic!("a variable is missing")
    };
    assert_eq!((on.as_str(), bench.renderer.figures().queries), ("nomad/jobs/web", 2));
    let key = VariableKey { namespace: "default".to_owned(), path: "nomad/jobs/web".to_owned() };
    assert_eq!(bench.renderer.users_of(&key), [(bench.id(), BTreeSet::new())].into(), "it waits for it");
    bench.put("nomad/jobs/web", &[("user", "me"), ("password", "two\nlines=x")]).await;
    let Ok(SecretVariables::Read(found)) = read().await else { panic!("all are there") };
    let values: Vec<_> = found.values.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expected = [("secret.db.password", "two\nlines=x"), ("secret.db.user", "me"), ("secret.more.a", "1")];
    assert_eq!(values, expected);
    assert_eq!(bench.renderer.figures().queries, 0);
    found.write(&task.dirs).unwrap();
    let file = bench.path("private/secrets.json");
    assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    assert!(SecretValues::read(&task.dirs).unwrap() == Some(found));
    // The rights are those of templates.
    let forbidden = bench.renderer.secret_variables(task.clone(), &[secret("db", "nomad/jobs/other")]).await;
    let Err(error) = forbidden else { panic!("it is another job's") };
    assert!(error.class() == Class::Fatal && error.to_string().contains("the task may read only"), "{error}");
}

/// Services were registered without variables of templates, or with others than the process has.
#[tokio::test]
async fn variables_of_a_start_outlive_later_renders() {
    let env = Block {
        env: true,
        ..block("secrets/env", r#"{{ with nomadVar "nomad/jobs/web" }}NAME={{ .name }}{{ end }}"#)
    };
    let mut bench = Bench::new(vec![env]);
    bench.put("nomad/jobs/web", &[("name", "one")]).await;
    bench.done().await;
    let started = |bench: &Bench| started_variables(&bench.task.dirs).unwrap().remove("NAME").unwrap();
    assert_eq!(started(&bench), "one", "before any start");
    note_start(&bench.task.dirs).unwrap();
    bench.put("nomad/jobs/web", &[("name", "two")]).await;
    bench.done().await;
    assert_eq!(started(&bench), "one");
    assert_eq!(template_variables(&bench.task.dirs).unwrap()["NAME"], "two");
    note_start(&bench.task.dirs).unwrap();
    assert_eq!(started(&bench), "two");
}

/// The agent bounds the wait of a template; its own default is for templates without one.
#[tokio::test(start_paused = true)]
async fn bounds_of_the_agent_limit_the_wait_of_a_template() {
    let second = Duration::from_secs(1);
    let settings = || Settings {
        wait: Wait { min: second, max: 2 * second },
        wait_min: 10 * second,
        wait_max: Some(60 * second),
        ..Settings::default()
    };
    let own = |min, max| Some(TemplateWait { min: Span::from_secs(min), max: Span::from_secs(max) });
    for (wait, expected) in [(None, 1), (own(2, 5), 10), (own(20, 30), 20), (own(90, 120), 60)] {
        let text = r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }}"#;
        let mut bench = Bench::new(vec![Block { wait, ..block("local/a", text) }]);
        bench.renderer = Arc::new(Renderer::new(sources(&bench.variables), settings()));
        bench.put("nomad/jobs/web", &[("user", "admin")]).await;
        bench.done().await;
        let began = Instant::now();
        bench.renderer.watches.changed(began, |_| true);
        bench.renderer.watches.due().await;
        assert_eq!(began.elapsed(), expected * second, "{wait:?}");
    }
}
