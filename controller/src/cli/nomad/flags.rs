//! Nomad's flags, and their meaning here.
//!
//! In: a flag as typed, and its verb. Out: our equivalent, nothing if it is the default here, or why it is not accepted and what
//! to use. Flags that our command has under the same name are not listed.

/// The meaning of one of Nomad's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The default here: dropped.
    Granted,
    /// Replaced by these words.
    Is(&'static [&'static str]),
    /// Replaced by this flag, with the same value.
    Named(&'static str),
    /// Not accepted: what to use.
    Refused(&'static str),
}

use Meaning::{Granted, Is, Named, Refused};

struct Flag {
    /// The verbs with this meaning; empty for all verbs.
    after: &'static [&'static str],
    /// Without dashes; with `=false` if that has its own meaning.
    names: &'static [&'static str],
    meaning: Meaning,
}

const READING: &[&str] = &["job run", "job plan", "job validate"];
const LISTING: &[&str] = &["job allocs", "job deployments", "node status", "service list", "service info"];
/// Verbs whose commands have `--wait`.
const WAITING: &[&str] = &[
    "job run",
    "job revert",
    "job scale",
    "job dispatch",
    "job stop",
    "job stop -purge",
    "job start",
    "job restart",
    "job promote",
    "deployment promote",
    "alloc stop",
    "alloc restart",
];
const SESSIONS: &[&str] = &["alloc exec", "job action"];
const STOPPING: &[&str] = &["job stop", "job stop -purge"];
const OF_A_TEMPLATE: &str = "Go templates are not supported; use -o json with jq";
const VERSIONS: &str = "every stored version, with its text: herdlet get versions JOB -o yaml";
const GROUP: &str = "name the group in the target: JOB.GROUP";
const IN_STEPS: &str = "all allocations restart at once; one at a time: herdlet restart JOB.GROUP[N]";
const FILTERS: &str = "lists are filtered and paged by the API, as in Nomad: GET /v1/services?filter=…";
const FILES: &str = "print a file: herdlet fs cat ALLOC PATH; follow a log: herdlet logs -f ALLOC";

const fn flag(after: &'static [&'static str], names: &'static [&'static str], meaning: Meaning) -> Flag {
    Flag { after, names, meaning }
}

/// Earlier rows take precedence, also if two rows yield the same flag.
const FLAGS: [Flag; 67] = [
    flag(READING, &["json", "hcl2-strict"], Granted),
    flag(READING, &["hcl1"], Refused("only HCL2 is supported, not HCL1")),
    flag(READING, &["hcl2-strict=false"], Refused("a value for an undeclared variable is an error")),
    flag(READING, &["policy-override"], Refused("there are no policies; omit it")),
    flag(
        READING,
        &["consul-token", "consul-namespace", "vault-token", "vault-namespace"],
        Refused("tokens and namespaces of Consul and Vault are not supported"),
    ),
    flag(WAITING, &["detach=false"], Is(&["--wait"])),
    flag(&["job run"], &["detach"], Granted),
    flag(
        &["job run"],
        &["check-index"],
        Refused(
            "the command does not compare indexes; POST /v1/jobs does, with EnforceIndex; to see what would change: \
             herdlet diff -f FILE",
        ),
    ),
    flag(&["job run"], &["output"], Refused("print the job: herdlet convert FILE")),
    flag(
        &["job run"],
        &["preserve-counts"],
        Refused("the counts of the file apply; scale again afterwards: herdlet scale JOB COUNT"),
    ),
    flag(&["job plan"], &["diff"], Granted),
    flag(&["job plan"], &["diff=false"], Refused("the exit code reports whether anything would change")),
    flag(&["job status"], &["all-allocs"], Refused("list them: herdlet ps --all JOB")),
    flag(&["job status"], &["evals"], Refused("the API has them: GET /v1/job/JOB/evaluations")),
    flag(&["job inspect"], &["json"], Granted),
    flag(
        &["job inspect"],
        &["hcl", "with-vars"],
        Refused("a job is printed as JSON; as a manifest, in YAML: herdlet get jobs JOB -o yaml"),
    ),
    flag(&["job inspect"], &["version"], Refused(VERSIONS)),
    flag(&["job allocs", "job deployments", "deployment list"], &["all"], Granted),
    flag(&["job deployments"], &["latest"], Refused("to see a job's last deployment: herdlet status JOB")),
    flag(&["job history"], &["full"], Is(&["-o", "yaml"])),
    flag(&["job history"], &["p", "version", "diff-version", "diff-tag", "tag"], Refused(VERSIONS)),
    flag(&["job dispatch"], &["priority"], Refused("a child has its parent's priority")),
    flag(&["job action"], &["job"], Named("--job")),
    flag(&["job action"], &["group"], Named("--group")),
    flag(&["job action"], &["alloc"], Named("--alloc")),
    flag(&["job restart"], &["all-tasks"], Is(&["--all"])),
    flag(&["job restart"], &["group"], Refused(GROUP)),
    flag(&["job restart"], &["batch-size", "batch-wait", "on-error"], Refused(IN_STEPS)),
    flag(&["job restart"], &["reschedule"], Refused("replace an allocation: herdlet stop JOB.GROUP[N]")),
    flag(STOPPING, &["purge", "global"], Granted),
    // Ours has these as aliases of its `--purge`, which removes data.
    flag(
        STOPPING,
        &["v", "volumes"],
        Refused("to delete a job and its volumes' data: herdlet delete JOB --purge"),
    ),
    flag(
        &["alloc logs"],
        &["tail"],
        // The same number of lines as in Nomad without `-n`.
        Is(&["--tail", "10"]),
    ),
    flag(&["alloc logs"], &["c"], Refused("the end of a log is selected in lines: -n LINES")),
    flag(&["alloc logs", "alloc exec", "alloc fs", "alloc restart"], &["job"], Granted),
    flag(&["alloc logs", "alloc exec", "alloc fs", "alloc restart"], &["group"], Refused(GROUP)),
    flag(SESSIONS, &["i=false", "t=false"], Granted),
    flag(SESSIONS, &["i=true", "i"], Is(&["-i"])),
    flag(SESSIONS, &["t=true", "t"], Is(&["-t"])),
    flag(SESSIONS, &["e"], Refused("sessions have no escape character; omit it")),
    flag(&["alloc fs"], &["stat"], Refused("for one file: herdlet fs stat ALLOC PATH")),
    flag(&["alloc fs"], &["f", "tail", "n", "c"], Refused(FILES)),
    flag(&["alloc fs"], &["H"], Granted),
    flag(&["alloc restart"], &["all-tasks"], Is(&["--all"])),
    flag(&["alloc restart"], &["reschedule"], Refused("replace the allocation: herdlet stop ALLOC")),
    flag(&["alloc status", "node status"], &["stats"], Refused("for what jobs use: herdlet top")),
    flag(&["node status"], &["self", "os"], Granted),
    flag(&["node drain", "node eligibility"], &["self", "yes"], Granted),
    flag(&["node drain"], &["enable"], Granted),
    flag(&["node status"], &["allocs"], Refused("list them: herdlet ps")),
    flag(&["node status"], &["quiet"], Is(&["-o", "name"])),
    flag(&["volume status"], &["type"], Refused("all volumes are host volumes; omit it")),
    flag(
        &["job run", "job stop", "job stop -purge", "job eval"],
        &["eval-priority"],
        Refused("there are no evaluations to prioritize; a job's priority is a field of its manifest"),
    ),
    flag(&["job run", "job dispatch"], &["ui"], Refused("open the status page afterwards: herdlet ui")),
    flag(
        &["job restart", "alloc restart"],
        &["no-shutdown-delay"],
        Refused("shutdown_delay always applies there; to shorten it, apply a smaller one"),
    ),
    flag(
        &["job stop", "job stop -purge", "alloc stop"],
        &["no-shutdown-delay"],
        Is(&["--no-shutdown-delay"]),
    ),
    flag(&["var put", "var get"], &["template"], Refused(OF_A_TEMPLATE)),
    flag(&["var lock"], &["shell", "max-retry"], Granted),
    flag(&["var lock"], &["shell=false"], Refused("a command with several arguments needs no shell")),
    flag(&[], &["detach=false"], Refused("this command never waits; wait afterwards: herdlet wait JOB")),
    flag(&[], &["yes=false"], Refused("no command asks for confirmation; omit it")),
    flag(&[], &["detach", "yes", "short"], Granted),
    flag(&[], &["json"], Is(&["-o", "json"])),
    flag(LISTING, &["verbose"], Is(&["-o", "wide"])),
    flag(&[], &["verbose"], Granted),
    flag(&[], &["filter", "per-page", "page-token"], Refused(FILTERS)),
    flag(&[], &["t"], Refused(OF_A_TEMPLATE)),
    flag(&[], &["address"], Named("--addr")),
];

/// Flags of all verbs: colours, namespace, and the connection to an agent.
const COMMON: [Flag; 7] = [
    flag(&[], &["no-color"], Is(&["--color", "never"])),
    flag(&[], &["force-color"], Is(&["--color", "always"])),
    flag(&[], &["namespace"], Refused("name the job with its namespace: NAMESPACE/JOB")),
    flag(&[], &["region"], Refused("there is only one region; omit it")),
    flag(
        &[],
        &["token"],
        Refused("other users could read it on the command line: --token-file FILE, or set HERDLET_TOKEN"),
    ),
    flag(&[], &["ca-path"], Refused("name one file with all CA certificates: --ca-cert FILE")),
    flag(
        &[],
        &["tls-skip-verify", "tls-server-name"],
        Refused(
            "certificates are always verified, for the host of the address: --ca-cert FILE, --addr https://HOST:PORT",
        ),
    ),
];

/// Verbs and flags that keep Nomad's meaning even with two dashes, although our command has a flag of that name: ours would
/// remove data, or accepts no value.
const THEIRS: [(&str, &str); 2] = [("job stop -purge", "purge"), ("job run", "detach")];

/// Whether a flag is Nomad's even with two dashes.
pub(super) fn is_nomad_flag(verb: &str, typed: &str) -> bool {
    THEIRS.contains(&(verb, typed.split('=').next().unwrap_or(typed)))
}

/// The meaning of a flag for this verb (`job run`), and its position in the table. `typed` has no dashes, and may have a value.
pub(super) fn meaning(verb: &str, typed: &str) -> Option<(usize, Meaning)> {
    of_verb(verb, typed).or_else(|| find(typed, |flag| flag.after.is_empty()))
}

/// The same, only for flags that the table lists for this verb.
pub(super) fn of_verb(verb: &str, typed: &str) -> Option<(usize, Meaning)> {
    find(typed, |flag| flag.after.contains(&verb))
}

fn find(typed: &str, fits: impl Fn(&Flag) -> bool) -> Option<(usize, Meaning)> {
    let named = |wanted: &str| {
        let mut flags = FLAGS.iter().chain(&COMMON).enumerate();
        flags
            .find(|(_, flag)| fits(flag) && flag.names.contains(&wanted))
            .map(|(at, flag)| (at, flag.meaning))
    };
    let (name, value) = typed.split_once('=').unwrap_or((typed, ""));
    match (named(typed), value) {
        (Some(exact), _) => Some(exact),
        // `=false` is the same as no flag, unless the table has a row for it.
        (None, "false") => named(name).map(|(at, _)| (at, Granted)),
        (None, _) => named(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_meaning_depends_on_its_command() {
        let meaning_of = |verb: &str, typed: &str| meaning(verb, typed).map(|(_, meaning)| meaning);
        assert_eq!(meaning_of("job run", "json"), Some(Granted));
        assert_eq!(meaning_of("job allocs", "json"), Some(Is(&["-o", "json"])));
        assert_eq!(meaning_of("alloc exec", "t"), Some(Is(&["-t"])));
        assert_eq!(meaning_of("job allocs", "t"), Some(Refused(OF_A_TEMPLATE)));
        assert_eq!(meaning_of("job run", "detach=true"), Some(Granted));
        assert_eq!(meaning_of("job run", "detach=false"), Some(Is(&["--wait"])));
        assert_eq!(meaning_of("job restart", "all-tasks=false"), Some(Granted));
        assert_eq!(meaning_of("job dispatch", "detach=false"), Some(Is(&["--wait"])));
        for (verb, typed) in [
            ("deployment fail", "detach=false"),
            ("job restart", "yes=false"),
            ("alloc signal", "detach=false"),
        ] {
            assert!(matches!(meaning_of(verb, typed), Some(Refused(_))), "{verb} -{typed}");
        }
        assert_eq!(meaning_of("job run", "address=http://a:1"), Some(Named("--addr")));
        assert_eq!(meaning_of("job run", "bogus"), None);
    }
}
