//! Command lines, targets, and hints.

use std::sync::Arc;

use clap::CommandFactory as _;
use herdlet_api_types::{
    AllocId,
    job::Job,
    view::{AllocView, JobView},
};
use herdlet_cli::{Address, AddressError, target};
use herdlet_manifest::fixture::{alloc_view, ended, job, job_view};

use super::*;

fn parsed(line: &str) -> Result<Cli, u8> {
    parse(line.split_whitespace().map(OsString::from))
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn command_lines_people_type_are_understood() {
    for line in [
        "herdlet agent --state-dir /s --socket /x.sock --listen 127.0.0.1:1 --token-file /t --metrics-listen [::1]:2 --dns-listen [::1]:53 --manifests /m",
        "herdlet run hello.yaml more.yaml --state-dir /s",
        "herdlet apply -f web.yaml --wait --timeout 30s",
        "herdlet up -f - -f dir",
        "herdlet delete web other --purge",
        "herdlet delete volume site --purge",
        "herdlet down -f web.yaml",
        "herdlet get allocs -o json",
        "herdlet get jobs web -o yaml --no-headers",
        "herdlet ps -w",
        "herdlet get events web -o wide --watch",
        "herdlet status web --check",
        "herdlet explain web.web[0]/httpd",
        "herdlet describe web.web.0",
        "herdlet logs -f --stderr --tail 5 web",
        "herdlet exec -it web -- sh -c ls",
        "herdlet exec web cat /etc/hostname",
        "herdlet exec web ls -la --color=always",
        "herdlet up -d -f web.yaml",
        "herdlet down -v -f web.yaml",
        "herdlet exec -i -t web --task httpd -- sh",
        "herdlet restart web --task httpd",
        "herdlet restart web --all",
        "herdlet signal -s SIGUSR1 web",
        "herdlet wait --for=healthy web other",
        "herdlet promote web --group api --group front",
        "herdlet deployment fail web -o json",
        "herdlet get deployments web -o wide",
        "herdlet scale web.front 3 --wait --message load",
        "herdlet validate --strict web.yaml",
        "herdlet plan -f web.yaml --addr unix:///run/x.sock",
        "herdlet schema spec.groups.tasks",
        "herdlet template render a.tpl --env A=b --var nomad/jobs/x.k=v -o json",
        "herdlet completions bash",
        "herdlet version -o json",
        "herdlet --addr unix:///run/x.sock --token-file /t status",
        "herdlet status --color never",
        "herdlet --color=always get jobs",
        "herdlet status -o yaml",
        "herdlet explain web -o json",
        "herdlet diff -f web.yaml -o json",
        "herdlet apply -f web.yaml --wait --output json",
        "herdlet up -d --wait",
        "herdlet down -v",
        "herdlet delete web -o json",
        "herdlet logs web -o json",
        "herdlet validate web.yaml -o json",
    ] {
        assert!(parsed(line).is_ok(), "{line}");
    }
}

#[test]
fn wrong_command_lines_end_with_the_code_of_their_command() {
    for (line, code) in [
        ("herdlet", failure::USAGE),
        ("herdlet nothing", failure::USAGE),
        ("herdlet apply", failure::USAGE),
        ("herdlet apply -f x --timeout 7d", failure::USAGE),
        ("herdlet delete", failure::USAGE),
        ("herdlet restart web --all --task t", failure::USAGE),
        ("herdlet get allocs --addr localhost:4646", failure::USAGE),
        ("herdlet --addr unix:///x validate web.yaml", failure::USAGE),
        ("herdlet --token-file /t agent", failure::USAGE),
        ("herdlet --addr unix:///x exec web", failure::AGENT_FAILED),
        ("herdlet run", failure::AGENT_FAILED),
        ("herdlet exec web", failure::AGENT_FAILED),
        ("herdlet --help", 0),
        ("herdlet apply --help", 0),
        ("herdlet --version", 0),
    ] {
        assert_eq!(parsed(line).err(), Some(code), "{line}");
    }
}

/// On a node of a cluster, `job run` made a job of the machine without a word.
#[test]
fn apply_knows_whether_nomads_verb_was_typed() {
    for (line, verb) in [
        ("herdlet apply -f web.hcl", ApplyVerb::Apply),
        ("herdlet up -f web.hcl", ApplyVerb::Apply),
        ("herdlet job run web.hcl", ApplyVerb::JobRun),
    ] {
        let Command::Client(command) = parsed(line).unwrap().command else { panic!("{line}") };
        let ClientCommand::Apply(args) = *command else { panic!("{line}") };
        assert_eq!(args.verb, verb, "{line}");
    }
}

#[test]
fn later_connection_flag_wins_at_any_place() {
    let connection = |line: &str| {
        let Command::Client(mut command) = parsed(line).unwrap().command else { panic!("{line}") };
        let connection = command.connection().unwrap();
        (connection.addr.as_ref().map(ToString::to_string), connection.token_file.clone())
    };
    let (addr, token) = (Some("unix:///a".to_owned()), Some(PathBuf::from("/t")));
    assert_eq!(connection("herdlet --addr unix:///a --token-file /t status"), (addr.clone(), token.clone()));
    assert_eq!(connection("herdlet --token-file /t status --addr unix:///a"), (addr.clone(), token));
    assert_eq!(connection("herdlet --addr unix:///b status --addr unix:///a"), (addr, None));
}

#[test]
fn every_command_has_usage_examples() {
    // Behind a command of Nomad, `alloc fs`.
    const HIDDEN: &str = "fs show ";
    let mut commands: Vec<(String, clap::Command)> = vec![(String::new(), Cli::command())];
    while let Some((path, command)) = commands.pop() {
        for inner in command.get_subcommands() {
            let path = format!("{path}{} ", inner.get_name());
            if inner.is_hide_set() && path != HIDDEN {
                continue;
            }
            let name = if path == HIDDEN { "alloc fs" } else { path.trim_end() };
            let help = inner.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("herdlet {name}")), "{path}: {help}");
            assert!(inner.get_about().is_some(), "{path}");
            for line in help.lines().filter_map(|line| line.trim().strip_prefix("herdlet ")) {
                // Every example must parse. Two spaces separate it from its comment.
                let line = line.split("  ").next().unwrap_or(line).split(" > ").next().unwrap_or(line);
                let line = line.split(" | ").next().unwrap_or(line);
                assert!(parsed(&format!("herdlet {line}")).is_ok(), "{line}");
            }
            commands.push((path, inner.clone()));
        }
    }
}

/// The overview in the book names each command, and no other.
#[test]
fn the_overview_of_commands_is_complete() {
    let page = include_str!("../../../docs/reference/cli.md");
    let (_, rest) = page.split_once("## Commands\n").unwrap();
    let rows = rest.split("\n## ").next().unwrap().lines().filter_map(|line| line.strip_prefix("| `"));
    // Nomad's verbs are translated to these commands.
    let cells = rows.filter(|row| !row.contains("[Nomad's verbs]")).filter_map(|row| row.split(" | ").next());
    let named =
        cells.flat_map(|cell| cell.split(", ")).filter_map(|name| name.trim_matches('`').split(' ').next());
    let named: std::collections::BTreeSet<&str> = named.collect();
    let program = Cli::command();
    let visible = program.get_subcommands().filter(|command| !command.is_hide_set());
    let visible: std::collections::BTreeSet<&str> =
        visible.map(clap::Command::get_name).filter(|name| *name != "help").collect();
    let is_alias = |name: &&&str| {
        program.get_subcommands().any(|command| command.get_all_aliases().any(|alias| alias == **name))
    };
    assert_eq!(visible.difference(&named).collect::<Vec<_>>(), [&""; 0], "commands that the page lacks");
    let unknown: Vec<_> = named.difference(&visible).filter(|name| !is_alias(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not commands");
}

#[test]
fn flags_of_compose_are_in_the_help() {
    for (command, flag) in [("apply", "-d, --detach"), ("delete", "-v")] {
        let mut found = Cli::command().find_subcommand(command).cloned().unwrap();
        let help = found.render_long_help().to_string();
        assert!(help.contains(flag), "{help}");
    }
}

#[test]
fn addresses_are_sockets_or_urls() {
    let read = |text: &str| text.parse::<Address>();
    assert_eq!(read("unix:///run/x.sock"), Ok(Address::Unix("/run/x.sock".into())));
    assert_eq!(read("http://127.0.0.1:4646/"), Ok(Address::Url("http://127.0.0.1:4646".to_owned())));
    assert_eq!(read("unix://x.sock"), Err(AddressError::RelativePath));
    for text in ["localhost:4646", "https://", "http://host/path", "http://user@host", ""] {
        assert_eq!(read(text), Err(AddressError::Form), "{text}");
    }
}

/// Two jobs, one of whose names is a prefix of the other's, and ids with common prefixes.
fn landscape() -> (Vec<JobView>, Vec<AllocView>) {
    let (web, web_api, child) =
        (job("web", "web", "httpd"), job("web.api", "front", "httpd"), job("web/dispatch-1", "g", "t"));
    // Both are `prod/Api_v2`, and `a.b` is a group with a task that look like an index and a task of group `a`.
    let in_prod = Arc::new(Job { namespace: "prod".to_owned(), ..Job::clone(&job("Api_v2", "a.b", "t_1")) });
    let with_slash = job("prod/Api_v2", "a", "b");
    let allocs = vec![
        ended(alloc_view(&web, 0, 0x10)),
        alloc_view(&web, 0, 0x11),
        alloc_view(&web, 1, 0x12),
        alloc_view(&web_api, 0, 0x20),
        alloc_view(&child, 0, 0x30),
        alloc_view(&in_prod, 0, 0x40),
        alloc_view(&with_slash, 0, 0x50),
    ];
    ([web, web_api, child, in_prod, with_slash].iter().map(|job| job_view(job, 0)).collect(), allocs)
}

#[test]
fn targets_are_found() {
    let (jobs, allocs) = landscape();
    for (text, seeds, task) in [
        ("web", &[0x11, 0x12][..], None),
        ("web/httpd", &[0x11, 0x12], Some("httpd")),
        ("web.web", &[0x11, 0x12], None),
        ("web.web[1]", &[0x12], None),
        ("web.web.1", &[0x12], None),
        ("web.web[0]/httpd", &[0x11], Some("httpd")),
        ("web.web.0/httpd", &[0x11], Some("httpd")),
        ("web.api", &[0x20], None),
        ("web.api.front[0]", &[0x20], None),
        ("web/dispatch-1", &[0x30], None),
        ("web/dispatch-1/t", &[0x30], Some("t")),
        ("20202020", &[0x20], None),
        ("30303030-3030", &[0x30], None),
        ("303030303030", &[0x30], None),
        ("30303030/t", &[0x30], Some("t")),
        ("default/web", &[0x11, 0x12], None),
        ("default/web.web[1]", &[0x12], None),
        ("default/web.api", &[0x20], None),
        ("prod/Api_v2", &[0x40], None),
        ("prod/Api_v2/t_1", &[0x40], Some("t_1")),
        ("prod/Api_v2.a.b[0]/t_1", &[0x40], Some("t_1")),
        ("prod/Api_v2.a[0]", &[0x50], None),
        ("default/prod/Api_v2", &[0x50], None),
        ("default/prod/Api_v2/b", &[0x50], Some("b")),
    ] {
        let found = target::resolve(text, &jobs, &allocs).unwrap();
        let ids: Vec<AllocId> = found.allocs.iter().map(|view| view.spec.id).collect();
        let expected: Vec<AllocId> = seeds.iter().map(|seed| AllocId::from_hash([*seed; 16])).collect();
        assert_eq!((ids, found.task.as_deref()), (expected, task), "{text}");
    }
}

#[test]
fn unknown_target_is_reported_with_suggestions() {
    let (jobs, allocs) = landscape();
    for (text, fragment) in [
        ("wbe", "there is no job or allocation \"wbe\""),
        ("web.web[7]", "job web has no \"web[7]\""),
        ("web/nginx", "job web has no task \"nginx\""),
        ("web.web[0]/nginx", "job web has no task \"nginx\""),
        // The name of a deleted job, which is also the prefix of an allocation id.
        ("1", "there is no job or allocation \"1\""),
        ("10/t", "there is no job or allocation \"10/t\""),
        ("3-0303030", "there is no job or allocation"),
        ("ffff", "there is no job or allocation"),
    ] {
        let failure = target::resolve(text, &jobs, &allocs).unwrap_err();
        assert!(failure.to_string().contains(fragment), "{text}: {failure}");
    }
}
