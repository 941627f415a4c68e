//! Names in serde's formats, parsed from the source: one line for each struct and for each variant with
//! fields.
//!
//! The lines contain neither the type's own name nor its file, so types may be renamed and moved.

use std::{
    fs,
    path::{Path, PathBuf},
};

use quote::ToTokens as _;
use serde_derive_internals::{
    Ctxt, Derive,
    ast::{Container, Data, Field, Style},
};
use syn::{
    Attribute, DeriveInput,
    visit::{self, Visit},
};

use super::{assert_golden, root};

#[test]
fn serialized_names_stay() {
    let mut names = Names::default();
    for folder in ["api-types/src", "controller"] {
        sources(&root().join(folder), &mut |text| {
            names.visit_file(&syn::parse_file(text).expect("Rust that compiles"));
        });
    }
    names.lines.sort();
    assert!(names.lines.len() > 300, "found only {} types", names.lines.len());
    assert_golden("wire-names.txt", &names.lines);
}

/// Calls `take` with the text of each source file of the program.
fn sources(folder: &Path, take: &mut impl FnMut(&str)) {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !name.starts_with("target") && name != "tests" && name != "fuzz" {
            sources(&path, take);
        } else if name.ends_with(".rs") && name != "tests.rs" && !name.starts_with("test_") {
            take(&fs::read_to_string(&path).expect("a readable source file"));
        }
    }
}

#[derive(Default)]
struct Names {
    lines: Vec<String>,
}

impl Names {
    fn note(&mut self, input: &DeriveInput) {
        for (trait_name, derive) in [("Serialize", Derive::Serialize), ("Deserialize", Derive::Deserialize)] {
            if derives(&input.attrs, trait_name) {
                let errors = Ctxt::new();
                let container = Container::from_ast(&errors, input, derive, &syn::parse_quote!(serde));
                errors.check().expect("attributes that compile");
                self.note_container(&container.expect("a type that compiles"), trait_name);
            }
        }
    }

    fn note_container(&mut self, container: &Container<'_>, trait_name: &str) {
        let is_written = trait_name == "Serialize";
        match &container.data {
            Data::Struct(Style::Struct, fields) => {
                self.lines.push(format!("{trait_name} struct {{{}}}", fields_of(fields, is_written)));
            }
            Data::Struct(Style::Tuple | Style::Newtype | Style::Unit, _) => {}
            Data::Enum(variants) => {
                let each = variants.iter().map(|variant| {
                    let name = variant.attrs.name();
                    let name = if is_written {
                        &name.serialize_name().value
                    } else {
                        &name.deserialize_name().value
                    };
                    let aliases =
                        aliases(variant.attrs.aliases().iter().map(|alias| alias.value.as_str()), name);
                    match variant.style {
                        Style::Struct => {
                            format!("{name}{aliases} {{{}}}", fields_of(&variant.fields, is_written))
                        }
                        Style::Tuple | Style::Newtype => format!("{name}{aliases}()"),
                        Style::Unit => format!("{name}{aliases}"),
                    }
                });
                let tag = tag_of(container);
                let line = format!("{trait_name} enum{tag} {}", each.collect::<Vec<_>>().join(" | "));
                self.lines.push(line);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.note(&syn::parse2(item.to_token_stream()).expect("a struct"));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note(&syn::parse2(item.to_token_stream()).expect("an enum"));
    }

    /// Fields that a macro declares for several structs.
    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        let fields = &item.mac.tokens;
        let declared = quote::quote!(#[derive(Deserialize)] struct FieldsOfMacro { #fields });
        if let Ok(declared) = syn::parse2(declared) {
            self.note(&declared);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test =
            item.attrs.iter().any(|attribute| attribute.to_token_stream().to_string().contains("test"));
        if !is_test {
            visit::visit_item_mod(self, item);
        }
    }
}

fn derives(attributes: &[Attribute], name: &str) -> bool {
    let derive = attributes.iter().filter(|attribute| attribute.path().is_ident("derive"));
    let mut found = false;
    for attribute in derive {
        attribute
            .parse_nested_meta(|meta| {
                found |= meta.path.segments.last().is_some_and(|segment| segment.ident == name);
                Ok(())
            })
            .expect("a list of traits");
    }
    found
}

fn tag_of(container: &Container<'_>) -> String {
    use serde_derive_internals::attr::TagType;
    match container.attrs.tag() {
        TagType::External => String::new(),
        TagType::Internal { tag } => format!(" tag={tag}"),
        TagType::Adjacent { tag, content } => format!(" tag={tag} content={content}"),
        TagType::None => " untagged".to_owned(),
    }
}

fn fields_of(fields: &[Field<'_>], is_written: bool) -> String {
    let name = |field: &Field<'_>| {
        let names = field.attrs.name();
        let name = if is_written { &names.serialize_name().value } else { &names.deserialize_name().value };
        let is_skipped =
            if is_written { field.attrs.skip_serializing() } else { field.attrs.skip_deserializing() };
        match (is_skipped, field.attrs.flatten()) {
            (true, _) => None,
            (false, true) => Some(format!("..{}", field.ty.to_token_stream())),
            (false, false) => Some(format!(
                "{name}{}",
                aliases(field.attrs.aliases().iter().map(|alias| alias.value.as_str()), name)
            )),
        }
    };
    fields.iter().filter_map(name).collect::<Vec<_>>().join(", ")
}

/// Formats the aliases, in brackets.
fn aliases<'a>(aliases: impl Iterator<Item = &'a str>, name: &str) -> String {
    let others: Vec<&str> = aliases.filter(|alias| *alias != name).collect();
    if others.is_empty() { String::new() } else { format!("[{}]", others.join(",")) }
}
