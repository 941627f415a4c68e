//! Variables and services, and who may read them.
//!
//! In: orders of a test, registrations of nodes. Out: what servers answer, each with the index of its last change. A
//! task's identity may read the variables of its job, group and task, as with stock servers, and what a test grants.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_nomad::wire::{
    AllocId, Secret,
    catalogue::{NamespaceServices, ServiceInstance, ServiceStub, Variable, VariableStub},
};

use super::{State, is_over};

/// Namespace and path, or namespace and id.
pub(super) type Key = (String, String);

/// Variables and services.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    /// All variables.
    pub variables: BTreeMap<Key, Variable>,
    /// All services that nodes have registered, including those that were removed.
    pub instances: BTreeMap<Key, ServiceInstance>,
    /// Paths that every identity may read.
    pub granted: BTreeSet<String>,
    variables_index: u64,
    services_index: u64,
}

impl State {
    /// Writes a variable of the default namespace.
    pub fn put_variable(&mut self, path: &str, items: &[(&str, &str)]) {
        let index = self.next();
        self.catalogue.variables_index = index;
        let key = ("default".to_owned(), path.to_owned());
        let known = self.catalogue.variables.get(&key);
        let variable = Variable {
            namespace: "default".to_owned(),
            path: path.to_owned(),
            create_index: known.map_or(index, |known| known.create_index),
            modify_index: index,
            items: items.iter().map(|(name, value)| ((*name).to_owned(), Secret::from(*value))).collect(),
            ..Variable::default()
        };
        self.catalogue.variables.insert(key, variable);
    }

    /// Removes a variable of the default namespace.
    pub fn delete_variable(&mut self, path: &str) {
        self.catalogue.variables_index = self.next();
        self.catalogue.variables.remove(&("default".to_owned(), path.to_owned()));
    }

    /// Registers services.
    pub fn register_services(&mut self, services: Vec<ServiceInstance>) -> u64 {
        let index = self.next();
        self.catalogue.services_index = index;
        for service in services {
            let key = (service.namespace.clone(), service.id.clone());
            self.services.insert(key.clone(), service.alloc_id.clone());
            self.catalogue.instances.insert(key, ServiceInstance { modify_index: index, ..service });
        }
        index
    }

    /// Removes services for which it holds.
    pub fn remove_services(&mut self, is_it: impl Fn(&Key, &AllocId) -> bool) {
        let before = self.services.len();
        self.services.retain(|key, alloc| !is_it(key, alloc));
        if self.services.len() != before {
            self.catalogue.services_index = self.next();
        }
    }

    /// Signs an identity for each task of an allocation, as stock servers do when they place it.
    pub fn sign_tasks(&mut self, id: &AllocId, tasks: &[&str]) {
        let index = self.index;
        let token =
            |task: &&str| ((*task).to_owned(), Secret::from(format!("header.{id}-{task}-{index}.signature")));
        let signed = tasks.iter().map(token).collect();
        self.change(id, |alloc| alloc.signed_identities = signed);
    }

    pub(crate) fn variable(&self, key: &Key) -> (u64, Option<Variable>) {
        let found = self.catalogue.variables.get(key);
        (found.map_or(self.variables_index(), |found| found.modify_index), found.cloned())
    }

    pub(crate) fn variables_index(&self) -> u64 {
        self.catalogue.variables_index.max(1)
    }

    pub(crate) fn services_index(&self) -> u64 {
        self.catalogue.services_index.max(1)
    }

    pub(crate) fn variables(
        &self,
        namespace: &str,
        prefix: &str,
        token: Option<&Secret>,
    ) -> Vec<VariableStub> {
        let variables = self.catalogue.variables.values();
        let listed = variables.filter(|one| {
            (namespace == "*" || one.namespace == namespace)
                && one.path.starts_with(prefix)
                && token.is_none_or(|token| self.may_read(token, &one.namespace, &one.path))
        });
        let stub = |one: &Variable| VariableStub {
            namespace: one.namespace.clone(),
            path: one.path.clone(),
            create_index: one.create_index,
            create_time: one.create_time,
            modify_index: one.modify_index,
            modify_time: one.modify_time,
        };
        listed.map(stub).collect()
    }

    pub(crate) fn instances(&self, namespace: &str) -> impl Iterator<Item = &ServiceInstance> {
        let live = self.catalogue.instances.iter().filter(|(key, _)| self.services.contains_key(*key));
        live.map(|(_, instance)| instance).filter(move |one| one.namespace == namespace)
    }

    pub(crate) fn services_of(&self, namespace: &str) -> Vec<NamespaceServices> {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for one in self.instances(namespace) {
            names.entry(one.service_name.clone()).or_default().extend(one.tags.iter().cloned());
        }
        if names.is_empty() {
            return Vec::new();
        }
        let stub = |(service_name, tags): (String, BTreeSet<String>)| ServiceStub {
            service_name,
            tags: tags.into_iter().collect(),
        };
        let services = names.into_iter().map(stub).collect();
        vec![NamespaceServices { namespace: namespace.to_owned(), services }]
    }

    /// The namespace of the task whose identity this is. That of an allocation that has ended is worth nothing.
    pub(crate) fn namespace_of(&self, token: &Secret) -> Option<&str> {
        self.identity(token).map(|(alloc, _)| alloc.namespace.as_str())
    }

    /// Whether the identity of a task allows to read a variable.
    pub(crate) fn may_read(&self, token: &Secret, namespace: &str, path: &str) -> bool {
        let Some((alloc, task)) = self.identity(token) else { return false };
        let (job, group) = (&alloc.job_id, &alloc.task_group);
        let own = [
            "nomad/jobs".to_owned(),
            format!("nomad/jobs/{job}"),
            format!("nomad/jobs/{job}/{group}"),
            format!("nomad/jobs/{job}/{group}/{task}"),
        ];
        self.catalogue.granted.contains(path)
            || (alloc.namespace == namespace && own.iter().any(|own| own == path))
    }

    fn identity(&self, token: &Secret) -> Option<(&herdlet_nomad::wire::Allocation, &str)> {
        self.allocs.values().filter(|alloc| !is_over(alloc)).find_map(|alloc| {
            let (task, _) = alloc.signed_identities.iter().find(|(_, signed)| *signed == token)?;
            Some((alloc, task.as_str()))
        })
    }
}
