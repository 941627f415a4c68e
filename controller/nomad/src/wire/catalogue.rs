//! Reading the servers' variables (1.4 and later) and services (1.3 and later): `Variables.Read`, `Variables.List`,
//! `ServiceRegistration.GetService`, `ServiceRegistration.List`.
//!
//! Facts: `hashicorp/nomad:nomad/structs/variables.go`, `nomad/structs/service_registration.go`, and their endpoints.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{AllocId, NodeId, QueryMeta, QueryOptions, Secret};

/// `Variables.Read`: fetches a variable of the namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VariableRequest {
    /// Its path.
    pub path: String,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// The variable. Its index is that of the variable's last change; of any variable's if it does not exist.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VariableResponse {
    /// `None` if it does not exist.
    pub data: Option<Variable>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// A variable with its items.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Variable {
    /// Its namespace.
    pub namespace: String,
    /// Its path.
    pub path: String,
    /// The index of its creation.
    pub create_index: u64,
    /// Its creation, in nanoseconds since 1970.
    pub create_time: i64,
    /// The index of its last change.
    pub modify_index: u64,
    /// Its last change, in nanoseconds since 1970.
    pub modify_time: i64,
    /// Its items.
    pub items: BTreeMap<String, Secret>,
}

/// The number of items only: they are secrets.
impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable({:?}, {} items)", self.path, self.items.len())
    }
}

/// `Variables.List`: lists the variables of the namespace, or of all if it is `*`, that the token may list.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VariablesRequest {
    /// The beginning of their paths.
    pub prefix: String,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// The list. Its index is that of the last change of any variable.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VariablesResponse {
    /// By path.
    pub data: Vec<VariableStub>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// A variable without its items.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct VariableStub {
    /// Its namespace.
    pub namespace: String,
    /// Its path.
    pub path: String,
    /// The index of its creation.
    pub create_index: u64,
    /// Its creation, in nanoseconds since 1970.
    pub create_time: i64,
    /// The index of its last change.
    pub modify_index: u64,
    /// Its last change, in nanoseconds since 1970.
    pub modify_time: i64,
}

/// `ServiceRegistration.GetService`: the instances of a service in the namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceRequest {
    /// The service.
    pub service_name: String,
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// The instances. Their index is that of the last change of any service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceResponse {
    /// By id.
    pub services: Vec<ServiceInstance>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// An instance of a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceInstance {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The service.
    pub service_name: String,
    /// The job's namespace.
    pub namespace: String,
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// The node's datacenter.
    pub datacenter: String,
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// The allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: AllocId,
    /// Tags.
    pub tags: Vec<String>,
    /// IP address or host name.
    pub address: String,
    /// Port.
    pub port: i64,
    /// The index of its creation.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
}

/// `ServiceRegistration.List`: the services of the namespace, or of all if it is `*`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServicesRequest {
    /// Options.
    #[serde(flatten)]
    pub options: QueryOptions,
}

/// The services. Their index is that of the last change of any service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServicesResponse {
    /// By namespace; those without services are missing.
    pub services: Vec<NamespaceServices>,
    /// Index and leader.
    #[serde(flatten)]
    pub meta: QueryMeta,
}

/// The services of a namespace.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct NamespaceServices {
    /// The namespace.
    pub namespace: String,
    /// In any order.
    pub services: Vec<ServiceStub>,
}

/// A service, with the tags of all its instances.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServiceStub {
    /// Its name.
    pub service_name: String,
    /// In any order.
    pub tags: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_not_shown() {
        let variable = Variable {
            path: "nomad/jobs/web".to_owned(),
            items: [("password".to_owned(), Secret::from("hunter2"))].into(),
            ..Variable::default()
        };
        let response = VariableResponse { data: Some(variable), ..VariableResponse::default() };
        let shown = format!("{response:?}");
        assert!(shown.contains("nomad/jobs/web") && !shown.contains("hunter2"), "{shown}");
    }

    /// Go sends `nil` for empty lists and maps, and fields that a node does not know.
    #[test]
    fn answers_of_go_are_read() {
        use herdlet_rpc::codec::{self, Value};
        let text = |text: &str| Value::Text(text.to_owned());
        let map = |entries: Vec<(&str, Value)>| {
            Value::Map(entries.into_iter().map(|(name, value)| (text(name), value)).collect())
        };
        let variable = map(vec![("Path", text("a")), ("Lock", Value::Nil), ("Items", Value::Nil)]);
        let sent = codec::encode(&map(vec![("Data", variable), ("Index", Value::Uint(7))])).unwrap();
        let read: VariableResponse = codec::decode(&sent).unwrap();
        assert_eq!((read.meta.index, read.data.unwrap().path.as_str()), (7, "a"));
        let instance =
            map(vec![("ServiceName", text("db")), ("Tags", Value::Nil), ("Port", Value::Int(5432))]);
        let list = Value::List(vec![instance]);
        let sent = codec::encode(&map(vec![("Services", list), ("Index", Value::Uint(8))])).unwrap();
        let read: ServiceResponse = codec::decode(&sent).unwrap();
        assert_eq!((read.services[0].port, read.services[0].tags.len()), (5_432, 0));
        let sent = codec::encode(&map(vec![("Data", Value::Nil), ("Services", Value::Nil)])).unwrap();
        assert!(codec::decode::<VariableResponse>(&sent).unwrap().data.is_none());
        assert!(codec::decode::<VariablesResponse>(&sent).unwrap().data.is_empty());
        assert!(codec::decode::<ServicesResponse>(&sent).unwrap().services.is_empty());
    }
}
