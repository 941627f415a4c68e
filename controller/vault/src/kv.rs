//! Where the versions of the key-value engine keep data: version 2 has `data/` and `metadata/` below its mount.
//!
//! In: a path as people write it, and the mount that it is on. Out: the path to request. consul-template accepts paths with
//! and without `data/` (`dependency/vault_common.go`); so does this module.

use serde_json::Value;

use crate::path::VaultPath;

/// A mount of a secrets engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Without slashes at its ends. It may begin with the client's namespace.
    pub path: String,
    pub engine: Engine,
}

/// What matters about an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The key-value engine, version 2.
    KvV2,
    /// Any other: a path is requested as it is written.
    Plain,
}

/// What is requested of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read or write.
    Data,
    /// List names.
    Names,
}

impl Mount {
    /// A mount that nothing is known about.
    pub(crate) fn unknown() -> Self {
        Self { path: String::new(), engine: Engine::Plain }
    }

    /// Reads the answer of `sys/internal/ui/mounts/PATH`; `None` if it has no mount.
    pub(crate) fn of_answer(data: &Value) -> Option<Self> {
        let path = data.get("path")?.as_str()?.trim_matches('/').to_owned();
        let is_kv = data.get("type").and_then(Value::as_str) == Some("kv");
        let version = data.get("options").and_then(|options| options.get("version")).and_then(Value::as_str);
        let engine = if is_kv && version == Some("2") { Engine::KvV2 } else { Engine::Plain };
        Some(Self { path, engine })
    }

    /// The path to request. `namespace` is the client's.
    pub fn request_path(&self, path: &VaultPath, access: Access, namespace: Option<&str>) -> VaultPath {
        match self.engine {
            Engine::Plain => path.clone(),
            Engine::KvV2 => {
                let path_in_engine = self.insert(path.as_str(), access, namespace);
                VaultPath::of_checked(path_in_engine, path.arguments().to_vec())
            }
        }
    }

    fn insert(&self, path: &str, access: Access, namespace: Option<&str>) -> String {
        let folder = match access {
            Access::Data => "data",
            Access::Names => "metadata",
        };
        let namespace = namespace.map(|namespace| namespace.trim_matches('/')).unwrap_or_default();
        // The answer names the mount from the root namespace, requests from the client's.
        let mount = below(&self.path, namespace).filter(|rest| !rest.is_empty()).unwrap_or(&self.path);
        // A path on another mount is requested as it is written.
        let Some(rest) = below(path, mount) else { return path.to_owned() };
        let first = rest.split('/').next().unwrap_or_default();
        if matches!(first, "data" | "metadata") && (rest.contains('/') || access == Access::Names) {
            return path.to_owned();
        }
        if rest.is_empty() { format!("{mount}/{folder}") } else { format!("{mount}/{folder}/{rest}") }
    }
}

/// What follows `folder` in a path; `None` if the path is not below it.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    if folder.is_empty() {
        return Some(path);
    }
    let rest = path.strip_prefix(folder)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(mount: &str, path: &str, access: Access, namespace: Option<&str>) -> String {
        let mount = Mount { path: mount.to_owned(), engine: Engine::KvV2 };
        mount.request_path(&VaultPath::parse(path).unwrap(), access, namespace).as_str().to_owned()
    }

    #[test]
    fn data_is_inserted_once() {
        for (mount, path, expected) in [
            ("secret", "secret/web", "secret/data/web"),
            ("secret", "secret/data/web", "secret/data/web"),
            ("secret", "secret/metadata/web", "secret/metadata/web"),
            ("secret", "secret", "secret/data"),
            // A secret may have the name of the folder.
            ("secret", "secret/data", "secret/data/data"),
            ("secret", "secret/database", "secret/data/database"),
            ("kv/team", "kv/team/web/db", "kv/team/data/web/db"),
            ("kv/team", "kv/teams/web", "kv/teams/web"),
        ] {
            assert_eq!(request(mount, path, Access::Data, None), expected);
        }
        assert_eq!(request("secret", "secret/web", Access::Names, None), "secret/metadata/web");
        assert_eq!(request("secret", "secret", Access::Names, None), "secret/metadata");
        assert_eq!(request("secret", "secret/metadata", Access::Names, None), "secret/metadata");
    }

    #[test]
    fn the_namespace_is_not_part_of_a_request() {
        for namespace in ["team", "team/", "/team/"] {
            let path = request("team/secret", "secret/web", Access::Data, Some(namespace));
            assert_eq!(path, "secret/data/web");
        }
        assert_eq!(request("secret", "secret/web", Access::Data, Some("team")), "secret/data/web");
        assert_eq!(request("team", "team/web", Access::Data, Some("team")), "team/data/web");
    }

    #[test]
    fn arguments_stay() {
        let mount = Mount { path: "secret".to_owned(), engine: Engine::KvV2 };
        let path = VaultPath::parse("secret/web?version=3").unwrap();
        let request = mount.request_path(&path, Access::Data, None);
        assert_eq!(request, VaultPath::parse("secret/data/web?version=3").unwrap());
    }

    #[test]
    fn only_version_2_has_folders() {
        let engine = |answer: Value| Mount::of_answer(&answer).map(|mount| mount.engine);
        let kv = |options: Value| json!({ "path": "secret/", "type": "kv", "options": options });
        assert_eq!(engine(kv(json!({ "version": "2" }))), Some(Engine::KvV2));
        for options in [json!(null), json!({}), json!({ "version": "1" }), json!({ "version": 2 })] {
            assert_eq!(engine(kv(options)), Some(Engine::Plain));
        }
        let pki = json!({ "path": "pki/", "type": "pki", "options": { "version": "2" } });
        assert_eq!(engine(pki), Some(Engine::Plain));
        assert_eq!(engine(json!({ "type": "kv" })), None);
        assert_eq!(engine(json!(null)), None);
    }
}
