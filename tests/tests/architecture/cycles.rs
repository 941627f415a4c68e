//! No cycle between modules, at any level of any crate.
//!
//! A folder and the file that declares it are one node, so a module that uses its own submodules has no edge.
//! The edges are the paths in code that begin with `crate`, `super` or `self`. Test code does not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use quote::ToTokens as _;
use syn::visit::{self, Visit};

use super::root;

/// `a::b`, relative to the root of a crate.
type Module = Vec<String>;

/// Edges between sibling modules: their parent, then from, then to.
type Edges = BTreeMap<Module, BTreeMap<String, BTreeSet<String>>>;

#[test]
fn modules_form_no_cycles() {
    let of_crate = |folder: &String| {
        cycles(&root().join(folder))
            .into_iter()
            .map(move |cycle| format!("{folder}{cycle}"))
            .collect::<Vec<_>>()
    };
    let found: BTreeSet<String> = crates().iter().flat_map(of_crate).collect();
    assert!(
        found.is_empty(),
        "these modules use each other; move the shared items into one of them: {found:#?}"
    );
}

/// Returns the source folders of the crates.
fn crates() -> Vec<String> {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace");
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).expect("the members");
    let folders = members.split('"').skip(1).step_by(2).map(|member| format!("{member}/src"));
    folders.filter(|folder| root().join(folder).is_dir()).collect()
}

/// Returns the cycles in the crate with the root `src`, each as `::around: one, other`, sorted.
fn cycles(src: &Path) -> Vec<String> {
    let mut files = Vec::new();
    collect(src, &mut Vec::new(), &mut files);
    let modules: BTreeSet<Module> = files.iter().flat_map(|(module, _)| prefixes(module)).collect();
    let mut edges = Edges::new();
    for (module, path) in &files {
        let text = fs::read_to_string(path).expect("a readable source file");
        let file = syn::parse_file(&text).expect("Rust that compiles");
        let mut paths = Paths { modules: &modules, here: module.clone(), edges: &mut edges };
        paths.visit_file(&file);
    }
    edges.iter().flat_map(|(around, edges)| components(around, edges)).collect()
}

/// Collects source files with their modules, without tests.
fn collect(folder: &Path, module: &mut Module, files: &mut Vec<(Module, PathBuf)>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of sources")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if name == "tests" || name.starts_with("test_") {
            continue;
        }
        let is_root = module.is_empty() && ["lib", "main"].contains(&name.as_str());
        if !is_root {
            module.push(name);
        }
        if path.is_dir() {
            collect(&path, module, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push((module.clone(), path));
        }
        if !is_root {
            module.pop();
        }
    }
}

fn prefixes(module: &[String]) -> impl Iterator<Item = Module> {
    (1..=module.len()).map(|len| module[..len].to_vec())
}

/// Resolves the paths in one file.
struct Paths<'a> {
    modules: &'a BTreeSet<Module>,
    here: Module,
    edges: &'a mut Edges,
}

impl Paths<'_> {
    fn note(&mut self, path: &[String]) {
        let Some(absolute) = self.resolve(path) else { return };
        // The longest prefix that is a module; the rest is an item.
        let known = |len: &usize| self.modules.contains(&absolute[..*len]);
        let Some(len) = (1..=absolute.len()).rev().find(known) else { return };
        let to = &absolute[..len];
        let common = self.here.iter().zip(to).take_while(|(one, other)| one == other).count();
        let (Some(from), Some(to)) = (self.here.get(common), to.get(common)) else { return };
        let around = self.edges.entry(self.here[..common].to_vec()).or_default();
        around.entry(from.clone()).or_default().insert(to.clone());
    }

    fn resolve(&self, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(self.here.iter().chain(rest).cloned().collect()),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                let above = self.here.get(..self.here.len().checked_sub(ups)?)?;
                Some(above.iter().chain(&path[ups..]).cloned().collect())
            }
            _ => None,
        }
    }

    fn note_tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_tree(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Name(name) => {
                before.push(name.ident.to_string());
                self.note(before);
                before.pop();
            }
            syn::UseTree::Rename(rename) => {
                before.push(rename.ident.to_string());
                self.note(before);
                before.pop();
            }
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(tree, before)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.note_tree(&item.tree, &mut Vec::new());
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            self.here.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.here.pop();
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&parts);
        visit::visit_path(self, path);
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.to_token_stream().to_string().contains("test")
    })
}

/// Returns the groups of two or more modules that reach each other.
fn components(around: &[String], edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|from| (from, reachable(from, edges))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (from, to) in &reached {
        let back = |other: &&&String| reached.get(*other).is_some_and(|back| back.contains(*from));
        let cycle: BTreeSet<&String> = to.iter().filter(back).copied().collect();
        if cycle.len() > 1 && seen.insert(cycle.clone()) {
            let names: Vec<&str> = cycle.into_iter().map(String::as_str).collect();
            let around: String = around.iter().flat_map(|part| ["::", part]).collect();
            found.push(format!("{around}: {}", names.join(", ")));
        }
    }
    found
}

fn reachable<'e>(from: &String, edges: &'e BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'e String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = edges.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(edges.get(module).into_iter().flatten());
        }
    }
    reached
}
