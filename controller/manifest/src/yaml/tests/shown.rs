//! Display of problems: order, maximum, JSON, quotations.

use super::*;

fn at(line: u32, message: &str) -> Problem {
    Problem {
        source: "a.yaml".to_owned(),
        line,
        column: 3,
        path: "spec".to_owned(),
        message: message.to_owned(),
    }
}

#[test]
fn problems_are_shown_by_place_and_stay_in_order_at_one_place() {
    let mut problems: Problems = at(7, "c").into();
    problems.extend([
        at(2, "a"),
        at(7, "b"),
        at(2, "a"),
        Problem { source: "Z".to_owned(), line: 0, ..at(0, "z") },
    ]);
    assert_eq!(
        problems.to_string(),
        "Z: spec: z\na.yaml:2:3: spec: a\na.yaml:7:3: spec: c\na.yaml:7:3: spec: b"
    );
    let mut more = Problems::new();
    more.append(problems.clone());
    assert_eq!(more, problems);
    assert_eq!(more.clone().into_result(), Err(more));
}

#[test]
fn only_the_first_hundred_problems_are_shown() {
    let mut problems = Problems::new();
    for line in (1..=250).rev() {
        problems.push(at(line, "x"));
    }
    assert_eq!((problems.len(), problems.more(), problems.iter().count()), (250, 150, 100));
    assert_eq!(problems.iter().next().unwrap().line, 1);
    assert!(problems.to_string().ends_with("a.yaml:100:3: spec: x\nand 150 more"));

    // The first hundred are exact; of the rest only the number is.
    let mut twice = problems.clone();
    twice.append(problems);
    assert_eq!((twice.len(), twice.more()), (400, 300));
}

#[test]
fn many_problems_of_one_text_cost_little() {
    let text = format!("spec:\n{}", (0..100_000).map(|key| format!("  k{key}: 1\n")).collect::<String>());
    let document = document(&text);
    let problems = check(&document.root(), &schema_for::<super::model::Manifest>());
    assert_eq!(problems.len(), 100_000);
    assert_eq!(problems.iter().last().unwrap().line, 101);
}

#[test]
fn problems_cross_json() {
    let problems: Problems = at(2, "is wrong").into();
    let json = serde_json::to_string(&problems).unwrap();
    assert_eq!(
        json,
        r#"{"problems":[{"source":"a.yaml","line":2,"column":3,"path":"spec","message":"is wrong"}],"more":0}"#
    );
    assert_eq!(serde_json::from_str::<Problems>(&json).unwrap(), problems);
}

#[test]
fn quoted_text_is_short_and_escaped() {
    let text = format!("spec: \"\\e[31m{}\"\n\"\\e]0;x\": 1\n", "long ".repeat(50));
    let document = document(&text);
    let problems = render(&check(&document.root(), &schema_for::<super::model::Manifest>()));
    assert!(!problems.contains('\u{1b}'), "{problems}");
    assert!(problems.lines().all(|line| line.len() < 160), "{problems}");
    let wide = super::document(&format!("spec:\n  {}: 1\n", "é".repeat(500)));
    assert!(
        super::render(&check(&wide.root(), &schema_for::<super::model::Manifest>())).chars().count() < 250
    );
}
