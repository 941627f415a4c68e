//! Examples of Nomad's commands, with their translations and errors.

use super::*;

fn args(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn translated(line: &str) -> String {
    match translate(&args(line)) {
        Translation::Ours => "ours".to_owned(),
        Translation::Translated(args) => args.join(std::ffi::OsStr::new(" ")).into_string().unwrap(),
        Translation::Refused(why) => why,
        Translation::Unknown(sentence, known) => format!("{}\n{known}", sentence.unwrap_or_default()),
    }
}

#[test]
fn nomad_commands_are_translated() {
    for (theirs, ours) in [
        ("herdlet job run -detach -var image=v2 web.hcl", "herdlet apply --var image=v2 -f web.hcl"),
        (
            "herdlet --addr unix:///s job run web.hcl --wait",
            "herdlet --addr unix:///s apply --wait -f web.hcl",
        ),
        ("herdlet job plan -var=a=b web.hcl", "herdlet diff --var=a=b -f web.hcl"),
        ("herdlet job status", "herdlet status"),
        ("herdlet job history web", "herdlet get versions web"),
        ("herdlet job revert web 3", "herdlet rollback web --to 3"),
        ("herdlet job scale web api 4", "herdlet scale web.api 4"),
        ("herdlet job scale web 4", "herdlet scale web 4"),
        ("herdlet job dispatch -meta a=b import -", "herdlet dispatch --meta a=b import -"),
        ("herdlet job stop -purge web", "herdlet delete web"),
        ("herdlet job stop --purge web", "herdlet delete web"),
        ("herdlet job stop -purge=true web", "herdlet delete web"),
        ("herdlet job stop -detach=false web", "herdlet stop --wait web"),
        ("herdlet job stop -purge=false web", "herdlet stop web"),
        ("herdlet job stop -purge -detach=false web", "herdlet delete --wait web"),
        ("herdlet job stop -no-shutdown-delay web", "herdlet stop --no-shutdown-delay web"),
        ("herdlet job stop -purge --no-shutdown-delay web", "herdlet delete --no-shutdown-delay web"),
        ("herdlet alloc stop -no-shutdown-delay 7f", "herdlet stop --no-shutdown-delay 7f"),
        ("herdlet job start web", "herdlet start web"),
        ("herdlet job revert -detach=false web 3", "herdlet rollback --wait web --to 3"),
        ("herdlet job run --detach=false web.hcl", "herdlet apply --wait -f web.hcl"),
        ("herdlet alloc status 1234", "herdlet describe 1234"),
        ("herdlet alloc logs -f -stderr -n 5 1234 httpd", "herdlet logs -f --stderr -n 5 1234/httpd"),
        ("herdlet alloc exec -it -task httpd 1234 ls -la", "herdlet exec -it --task httpd 1234 -- ls -la"),
        ("herdlet alloc exec 1234 -- ls -la", "herdlet exec 1234 -- ls -la"),
        ("herdlet job action -job=web -group g -task=httpd flush", "herdlet action --task=httpd web.g flush"),
        ("herdlet job action -job web -alloc 1234 flush", "herdlet action 1234 flush"),
        ("herdlet job action -job web -i=true flush", "herdlet action -i web flush"),
        ("herdlet alloc fs 1234 alloc/logs", "herdlet fs show 1234 alloc/logs"),
        ("herdlet alloc logs -n=5 1234", "herdlet logs -n=5 --stdout 1234"),
        // It printed both streams.
        ("herdlet alloc logs 1234", "herdlet logs --stdout 1234"),
        ("herdlet alloc logs -stderr 1234", "herdlet logs --stderr 1234"),
        ("herdlet alloc logs -stdout 1234", "herdlet logs --stdout 1234"),
        ("herdlet alloc logs -f 1234", "herdlet logs -f 1234"),
        ("herdlet alloc logs -f -tail 1234", "herdlet logs -f --tail 10 --stdout 1234"),
        ("herdlet alloc signal -s=SIGUSR1 1234", "herdlet signal -s=SIGUSR1 1234"),
        ("herdlet alloc signal -s SIGUSR1 1234 httpd", "herdlet signal -s SIGUSR1 1234/httpd"),
        ("herdlet node status", "herdlet get node"),
        (
            "herdlet job run -detach=false -address=http://a:1 web.hcl",
            "herdlet apply --addr http://a:1 --wait -f web.hcl",
        ),
        ("herdlet job plan -json -hcl2-strict=true -diff -verbose web.json", "herdlet diff -f web.json"),
        ("herdlet job allocs -verbose web", "herdlet ps -o wide --all web"),
        ("herdlet job allocs -verbose -json web", "herdlet ps -o json --all web"),
        ("herdlet job allocs -o name -json web", "herdlet ps -o name --all web"),
        ("herdlet job restart -yes -all-tasks web", "herdlet restart --all web"),
        ("herdlet job stop -detach -yes -global web", "herdlet stop web"),
        ("herdlet job status -no-color -short web", "herdlet status --color never web"),
        ("herdlet alloc logs -tail 1234", "herdlet logs --tail 10 --stdout 1234"),
        ("herdlet alloc logs -tail -n 50 1234", "herdlet logs -n 50 --stdout 1234"),
        ("herdlet alloc logs --tail 5 1234", "herdlet logs --tail 5 --stdout 1234"),
        ("herdlet alloc exec -i=true -t=false -job web sh", "herdlet exec -i web -- sh"),
        ("herdlet alloc exec -i -t 1234 sh", "herdlet exec -i -t 1234 -- sh"),
        ("herdlet deployment fail -detach web", "herdlet deployment fail web"),
        ("herdlet job periodic force -detach backup", "herdlet job periodic force backup"),
        ("herdlet job periodic force -json backup", "herdlet job periodic force backup -o json"),
        ("herdlet job inspect -json web", "herdlet job inspect web"),
        ("herdlet deployment status -json web", "herdlet deployment status web -o json"),
        (
            "herdlet var put -check-index 7 -in=hcl a/b @x.hcl",
            "herdlet var put a/b @x.hcl --check-index 7 --in=hcl",
        ),
        ("herdlet var put -force -namespace=prod a x=-", "herdlet var put a x=- --force --namespace=prod"),
        ("herdlet var get -out json -item x a", "herdlet var get a --out json --item x"),
        ("herdlet var list -q -namespace * nomad/", "herdlet var list nomad/ -q --namespace *"),
        ("herdlet var lock -ttl=20s a bin/x -v", "herdlet var lock a --ttl=20s -- bin/x -v"),
        ("herdlet job --help", "ours"),
        ("herdlet status", "ours"),
        ("herdlet exec web -- job run", "ours"),
    ] {
        assert_eq!(translated(theirs), ours, "{theirs}");
    }
}

#[test]
fn translated_commands_are_valid() {
    for verb in &VERBS {
        let usage = verb.usage.replace(['[', ']'], "").replace("COUNT", "3").replace("VERSION", "3");
        let theirs = format!("herdlet {} {} {usage}", verb.noun, verb.verb);
        let Translation::Translated(ours) = translate(&args(&theirs)) else { panic!("{theirs}") };
        assert!(crate::cli::parse(ours.clone()).is_ok(), "{theirs}: {ours:?}");
    }
}

#[test]
fn refused_flag_names_the_alternative() {
    for (theirs, why) in [
        (
            "herdlet job run -check-index 7 web.hcl",
            "-check-index is not accepted: the command does not compare indexes",
        ),
        ("herdlet job allocs -t {{.ID}} web", "-t is not accepted: Go templates are not supported"),
        (
            "herdlet job status -token=abc web",
            "-token is not accepted: other users could read it on the command line: --token-file",
        ),
        (
            "herdlet job restart -no-shutdown-delay web",
            "-no-shutdown-delay is not accepted: shutdown_delay always applies there",
        ),
        ("herdlet job stop -purge -v web", "-v is not accepted: to delete a job and its volumes' data"),
        ("herdlet job stop -yes=false web", "-yes is not accepted with =false: no command asks"),
        (
            "herdlet deployment fail -detach=false web",
            "-detach is not accepted with =false: this command never waits",
        ),
    ] {
        let message = translated(theirs);
        assert!(message.starts_with(why) && !message.contains("abc"), "{theirs}: {message}");
    }
}

#[test]
fn commands_that_wait_in_nomad_wait_here() {
    let mut command = Cli::command();
    command.build();
    for verb in &VERBS {
        let further = (verb.verb == "periodic").then_some("force");
        let path = verb.ours.iter().copied().chain(further);
        let ours = path.fold(&command, |command, word| command.find_subcommand(word).unwrap_or(command));
        let theirs = format!("{} {}", verb.noun, verb.verb);
        let meant = flags::meaning(&theirs, "detach=false").map(|(_, meaning)| meaning);
        let waits = meant == Some(Meaning::Is(&["--wait"]));
        assert_eq!(waits, find_flag(ours, "--wait").is_some(), "{theirs}: {meant:?}");
    }
}

#[test]
fn unknown_nomad_command_lists_known_ones() {
    let known = translated("herdlet job frobnicate web");
    assert!(known.starts_with("there is no command \"job frobnicate\"\n  herdlet job run FILE"), "{known}");
    assert!(
        known.contains("  herdlet job periodic force JOB\n") && !known.contains("herdlet alloc"),
        "{known}"
    );
    let near = translated("herdlet job stauts web");
    assert!(near.starts_with("there is no command \"job stauts\": did you mean job status?\n"), "{near}");
    let listed = translated("herdlet alloc");
    assert!(listed.starts_with("\n") && listed.contains("herdlet alloc logs ALLOC [TASK]"), "{listed}");
}
