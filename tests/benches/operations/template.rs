//! Operations on a template of 100 lines with 20 values.

use std::hint::black_box;

use herdlet_template::{Options, Template};
use herdlet_tests::template_sample::{source, text};

fn parsed() -> Template {
    Template::parse(&text(), &Options::default()).expect("a template")
}

pub(super) fn parse_and_render() -> Box<dyn FnMut()> {
    let (text, source) = (text(), source());
    Box::new(move || {
        let template = Template::parse(black_box(&text), &Options::default()).expect("a template");
        black_box(template.render(&source).result.expect("an output"));
    })
}

pub(super) fn render() -> Box<dyn FnMut()> {
    let (template, source) = (parsed(), source());
    assert_eq!(text().lines().count(), 102);
    Box::new(move || {
        black_box(black_box(&template).render(&source).result.expect("an output"));
    })
}
