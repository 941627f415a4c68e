//! Reads the variables and the secrets of Vault of `secret` blocks. Until all of them exist, changes of variables are reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::job::Secret;
use herdlet_template::{Answer, Query};

use super::{Recheck, RenderError, Renderer, TaskTemplates, names, run};
use crate::{
    data::Data,
    record::Indexes,
    secrets::SecretValues,
    vault::{Upkeep, VaultSession, values},
    watches::{Consumer, Use, Wait},
};

/// The end of a read.
pub enum SecretVariables {
    /// All are there.
    Read(SecretValues),
    /// Some are missing.
    Missing {
        /// Their names, for people.
        on: String,
        recheck: Recheck,
        upkeep: Upkeep,
    },
}

impl Renderer {
    /// Reads the values of a task's secrets that plugins do not have. Its templates are not needed.
    ///
    /// # Errors
    /// If one of them can't be read.
    pub async fn secret_variables(
        &self,
        task: TaskTemplates,
        secrets: &[Secret],
    ) -> Result<SecretVariables, RenderError> {
        let task = Arc::new(task);
        let mut found = SecretValues::default();
        let (mut missing, mut unanswered, mut used) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let mut vault = run(&task, |task| Ok(VaultSession::open(&task.dirs, Consumer::Secrets)?)).await?;
        for secret in secrets.iter().filter(|secret| !secret.is_of_plugin()) {
            let query = query_of(secret);
            used.insert(Data::of(&query, &task.reader), Use::waiting(Wait::NONE));
            match self.answer(&task, &query, (&mut vault, &Indexes::new())).await? {
                Ok(Answer::Json(answer)) => {
                    let fields = values(&answer).into_iter();
                    found.values.extend(fields.map(|(key, value)| (secret.value_name(&key), value)));
                }
                Ok(Answer::Variable(variable)) => {
                    let items = variable.items.iter();
                    found.values.extend(items.map(|(key, value)| (secret.value_name(key), value.clone())));
                }
                Ok(Answer::Failed(why)) => {
                    return Err(RenderError::Secret { name: secret.name.clone(), why });
                }
                Ok(
                    Answer::Pending
                    | Answer::Absent
                    | Answer::Text(_)
                    | Answer::Addresses(_)
                    | Answer::Variables(_)
                    | Answer::Services(_)
                    | Answer::ServiceNames(_),
                ) => drop(missing.insert(query)),
                Err(why) => {
                    unanswered.insert(query.clone(), why);
                    missing.insert(query);
                }
            }
        }
        let is_complete = missing.is_empty();
        if is_complete {
            vault.drop_unused();
        }
        let upkeep = vault.close().await?;
        self.watches.keep(task.key, if is_complete { const { &BTreeMap::new() } } else { &used });
        self.peers.users_changed();
        if is_complete {
            return Ok(SecretVariables::Read(found));
        }
        let on = names(&missing.iter().collect(), &unanswered);
        let recheck = if unanswered.is_empty() { Recheck::Reported } else { Recheck::Servers };
        Ok(SecretVariables::Missing { on, recheck, upkeep })
    }
}

fn query_of(secret: &Secret) -> Query {
    if secret.provider == Secret::VAULT {
        return Query::Vault { function: "secret", arguments: vec![secret.path.clone()] };
    }
    Query::NomadVariable {
        path: secret.path.clone(),
        namespace: secret.namespace.clone().unwrap_or_default(),
        region: String::new(),
    }
}
