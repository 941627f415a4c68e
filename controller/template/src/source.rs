//! Sources of data.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    query::{Answer, NodeAddress, Query, ServiceInstance, ServiceName, Variable, VariableMeta},
    text::Text,
};

/// Answers the queries of a template from what it has, without waiting.
pub trait Source {
    /// A source that has no data of this kind returns [`Answer::Failed`] with [`unavailable`].
    fn answer(&self, query: &Query) -> Answer;

    /// Seconds since 1970, for `timestamp`. A template with it renders differently each second.
    fn unix_time(&self) -> Option<i64> {
        None
    }
}

/// Why a query has no source: a sentence that names the function.
pub fn unavailable(query: &Query) -> String {
    match query {
        Query::Env { .. } => "env is not available here: the environment of a task is not known".to_owned(),
        Query::File { path } => format!("file is not available here: {path:?} cannot be read"),
        Query::Addresses => {
            "sockaddr is not available here: addresses of this machine are not known".to_owned()
        }
        Query::NomadVariable { .. } => {
            "nomadVar is not available here: there is no store of variables".to_owned()
        }
        Query::NomadVariables { .. } => {
            "nomadVarList is not available here: there is no store of variables".to_owned()
        }
        Query::NomadService { .. } => {
            "nomadService is not available here: there is no catalogue of services".to_owned()
        }
        Query::NomadServices { .. } => {
            "nomadServices is not available here: there is no catalogue of services".to_owned()
        }
        Query::Consul { function, .. } => {
            format!("{function} needs Consul, which is not available here")
        }
        Query::Vault { function, .. } => {
            format!("{function} needs Vault, which is not available here")
        }
    }
}

/// Data that is given once, for tests and for rendering without an agent. What is not given is pending, except variables of
/// the environment and of Nomad, which then do not exist.
#[derive(Clone, Default)]
pub struct Fixed {
    env: BTreeMap<String, String>,
    files: BTreeMap<String, Text>,
    variables: BTreeMap<String, Arc<Variable>>,
    services: Vec<ServiceInstance>,
    addresses: Option<Arc<[NodeAddress]>>,
    json: BTreeMap<String, Arc<serde_json::Value>>,
    unix_time: Option<i64>,
}

impl Fixed {
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn with_file(mut self, path: &str, content: &[u8]) -> Self {
        self.files.insert(path.to_owned(), content.into());
        self
    }

    /// Adds an item of a variable.
    pub fn with_item(mut self, path: &str, key: &str, value: &str) -> Self {
        let variable = self.variables.entry(path.to_owned()).or_default();
        let variable = Arc::make_mut(variable);
        path.clone_into(&mut variable.meta.path);
        "default".clone_into(&mut variable.meta.namespace);
        variable.items.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn with_service(mut self, instance: ServiceInstance) -> Self {
        self.services.push(instance);
        self
    }

    pub fn with_addresses(self, addresses: Vec<NodeAddress>) -> Self {
        Self { addresses: Some(addresses.into()), ..self }
    }

    /// Adds a value of a secret of Vault. A template finds it as in both versions of the key-value engine.
    pub fn with_secret(mut self, path: &str, key: &str, value: &str) -> Self {
        let secret = self.json.entry(format!("secret {path}")).or_default();
        let data = &mut Arc::make_mut(secret)["Data"];
        data["data"][key] = value.into();
        if key != "data" {
            data[key] = value.into();
        }
        self
    }

    /// Adds the answer to a query of Consul or Vault, by the query's text.
    pub fn with_json(mut self, query: &str, value: serde_json::Value) -> Self {
        self.json.insert(query.to_owned(), Arc::new(value));
        self
    }

    pub fn with_unix_time(self, seconds: i64) -> Self {
        Self { unix_time: Some(seconds), ..self }
    }

    fn service(&self, name: &str, tag: &str) -> Answer {
        let is_asked = |instance: &&ServiceInstance| {
            instance.name == name && (tag.is_empty() || instance.tags.iter().any(|own| own == tag))
        };
        Answer::Services(self.services.iter().filter(is_asked).cloned().collect())
    }

    fn service_names(&self) -> Answer {
        let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for instance in &self.services {
            names.entry(&instance.name).or_default().extend(instance.tags.iter().map(String::as_str));
        }
        let names = names.into_iter().map(|(name, tags)| ServiceName {
            name: name.to_owned(),
            tags: tags.into_iter().map(str::to_owned).collect(),
        });
        Answer::ServiceNames(names.collect())
    }

    /// The names below the path of `secrets`, if there are any; folders end in `/`.
    fn secret_names(&self, query: &Query) -> Option<Answer> {
        let Query::Vault { function: "secrets", arguments } = query else { return None };
        let prefix = format!("secret {}/", arguments.first()?.trim_matches('/'));
        let below = self.json.keys().filter_map(|name| name.strip_prefix(&prefix));
        let names: BTreeSet<String> = below
            .map(|name| name.split_once('/').map_or(name.to_owned(), |(folder, _)| format!("{folder}/")))
            .collect();
        (!names.is_empty()).then(|| Answer::Json(Arc::new(names.into_iter().collect())))
    }

    fn variable_list(&self, prefix: &str) -> Answer {
        let below = self.variables.iter().filter(|(path, _)| path.starts_with(prefix));
        Answer::Variables(
            below.map(|(_, variable)| variable.meta.clone()).collect::<Vec<VariableMeta>>().into(),
        )
    }
}

impl Source for Fixed {
    fn answer(&self, query: &Query) -> Answer {
        match query {
            Query::Env { name } => {
                self.env.get(name).map_or(Answer::Absent, |value| Answer::Text(value.as_str().into()))
            }
            Query::File { path } => {
                self.files.get(path).map_or(Answer::Pending, |content| Answer::Text(content.clone()))
            }
            Query::NomadVariable { path, .. } => self
                .variables
                .get(path)
                .map_or(Answer::Absent, |variable| Answer::Variable(Arc::clone(variable))),
            Query::NomadVariables { prefix, .. } => self.variable_list(prefix),
            Query::NomadService { .. } | Query::NomadServices { .. } if self.services.is_empty() => {
                Answer::Pending
            }
            Query::NomadService { name, tag, .. } => self.service(name, tag),
            Query::NomadServices { .. } => self.service_names(),
            Query::Addresses => match &self.addresses {
                Some(addresses) => Answer::Addresses(Arc::clone(addresses)),
                None => Answer::Pending,
            },
            Query::Consul { .. } | Query::Vault { .. } => match self.json.get(&query.to_string()) {
                Some(value) => Answer::Json(Arc::clone(value)),
                None => self.secret_names(query).unwrap_or_else(|| Answer::Failed(unavailable(query))),
            },
        }
    }

    fn unix_time(&self) -> Option<i64> {
        self.unix_time
    }
}
