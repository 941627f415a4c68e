//! `herdlet explain var`: what a change of a variable would do to the tasks whose templates use it.

use clap::Args;
use herdlet_api_types::variable::{DEFAULT_NAMESPACE, VariableEffect, VariableKey, VariableUser};
use serde::Serialize;

use crate::{
    Connection,
    failure::Failure,
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet explain var`.
#[derive(Debug, Clone, Args)]
pub struct ExplainVarArgs {
    /// The path of a variable, which need not exist
    path: String,
    /// Namespace of the variable
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

#[derive(Serialize)]
struct Users {
    namespace: String,
    path: String,
    users: Vec<VariableUser>,
}

pub(super) async fn explain(args: ExplainVarArgs) -> Result<u8, Failure> {
    let key = VariableKey { namespace: args.namespace, path: args.path };
    let users = args.connection.client()?.variable_users(&key).await?;
    match args.output.reader() {
        Reader::Person => show::out(&text(&key, &users)),
        Reader::Program => {
            args.output.document(&Users { namespace: key.namespace, path: key.path, users })?;
        }
    }
    Ok(0)
}

fn text(key: &VariableKey, users: &[VariableUser]) -> String {
    if users.is_empty() {
        return format!("no template uses {key}\n");
    }
    let mut table = Table::new(&["TASK", "IF THE OUTPUT CHANGES", "FILES"]);
    for user in users {
        table.row([format!("{}/{}", user.name, user.task), effect(user), user.files.join(", ")]);
    }
    table.render(Heading::Shown)
}

fn effect(user: &VariableUser) -> String {
    match user.effect {
        VariableEffect::Restart => "restarts".to_owned(),
        VariableEffect::Render => "is rendered only".to_owned(),
        VariableEffect::Start => "does not run: is rendered for its start".to_owned(),
        VariableEffect::Notify => {
            let signals = user.signals.iter().map(|signal| format!("gets {signal}"));
            let scripts = user.scripts.iter().map(|script| format!("runs {script}"));
            signals.chain(scripts).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::AllocId;

    use super::*;

    #[test]
    fn each_effect_has_its_words() {
        let user = |effect, signals: &[&str], scripts: &[&str]| VariableUser {
            name: "web.g[0]".to_owned(),
            alloc: AllocId::from_hash([1; 16]),
            task: "t".to_owned(),
            effect,
            signals: signals.iter().map(|signal| (*signal).to_owned()).collect(),
            scripts: scripts.iter().map(|script| (*script).to_owned()).collect(),
            files: vec!["local/a".to_owned(), "local/b".to_owned()],
        };
        let users = [
            user(VariableEffect::Restart, &[], &[]),
            user(VariableEffect::Notify, &["SIGHUP"], &["/bin/reload"]),
            user(VariableEffect::Render, &[], &[]),
            user(VariableEffect::Start, &[], &[]),
        ];
        let key = VariableKey { namespace: "prod".to_owned(), path: "nomad/jobs/web".to_owned() };
        let text = text(&key, &users);
        for part in [
            "restarts",
            "gets SIGHUP, runs /bin/reload",
            "is rendered only",
            "for its start",
            "local/a, local/b",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(super::text(&key, &[]), "no template uses nomad/jobs/web@prod\n");
    }
}
