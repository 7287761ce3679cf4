//! Plans with several seeds, and claims over all of them.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use super::support::{json, refused, run, stderr, stdout};
use super::{FABRIC, FILES, Plan, TRACE, bytes, everything};

/// Two variants whose random losses depend on the seed.
fn lossy(claims: &str) -> String {
    format!(
        "[plan]\ntitle = \"Losses\"\nduration = \"300us\"\nsample = \"10us\"\nseed = 7\n{FABRIC}\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\nsize = \"256K\"\ncount = 4\n\
         [[fault]]\nwhere = \"h5\"\naction = \"loss=1%,dir=down\"\n\
         [[variant]]\nname = \"a\"\n[[variant]]\nname = \"b\"\nset = {{ \"workload.0.count\" = 6 }}\n{claims}"
    )
}

fn result(folder: &Path) -> Json {
    json(&fs::read(folder.join("result.json")).unwrap())
}

fn claim(variant: &str, keys: &str) -> String {
    format!("[[claim]]\nwhat = \"sent again\"\nmeasure = \"repeats\"\nvariant = \"{variant}\"\n{keys}\n")
}

#[test]
fn several_seeds_give_the_same_bytes_however_many_run_at_once() {
    let plan = Plan::new("seeds-everything", &everything());
    fs::write(plan.path("trace.csv"), TRACE).unwrap();
    let one_by_one = plan.run("first", &["--seeds", "3", "-j", "1"]);
    for (number, jobs) in ["1", "2", "5"].into_iter().enumerate() {
        let other = plan.run(&format!("other-{number}"), &["--seeds", "3", "-j", jobs]);
        assert_eq!(bytes(&one_by_one), bytes(&other), "-j {jobs}");
        let picture = |folder: &Path| fs::read(folder.join("figure.svg")).unwrap();
        assert_eq!(picture(&one_by_one), picture(&other), "-j {jobs}");
    }
    // Tables are those of the first seed; summary and result have all of them.
    let first = plan.run("one", &[]);
    for ((name, several), one) in FILES.iter().zip(bytes(&one_by_one)).zip(bytes(&first)) {
        assert_eq!(several == one, name.contains("csv"), "{name}");
    }
}

/// What was measured with each seed is what a run with that seed alone measures.
#[test]
fn claims_are_judged_over_all_seeds() {
    let claims = [claim("a", "most = 1000"), claim("b", "against = { variant = \"a\" }\nleast = 1")].concat();
    let plan = Plan::new("seeds-judged", &lossy(&claims));
    let folder = plan.run("several", &["--seeds", "4"]);
    let several = result(&folder);
    let of = |result: &Json, variant: usize| result["variants"][variant]["claims"][0].clone();
    let mut values = [Vec::new(), Vec::new()];
    for (number, seed) in (7..11).enumerate() {
        let alone = result(&plan.run("alone", &["--seed", &seed.to_string()]));
        for (variant, values) in values.iter_mut().enumerate() {
            let (one, all) = (of(&alone, variant), of(&several, variant));
            assert_eq!(all["seeds"][number], one["seeds"][0]);
            assert_eq!(
                (&one["seeds"][0]["seed"], &one["seeds"][0]["value"], one["seeds_held"].as_u64()),
                (&Json::from(seed), &one["value"], Some(1))
            );
            values.push(one["value"].as_f64().unwrap());
            let own = &alone["variants"][variant];
            assert_eq!(several["variants"][variant]["seeds"][number], own["seeds"][0]);
            for key in ["seed", "ended_ns", "packets", "totals"] {
                assert_eq!(own[key], own["seeds"][0][key], "{key}");
            }
        }
    }
    for (variant, values) in values.iter_mut().enumerate() {
        values.sort_by(f64::total_cmp);
        assert!(values[0] < values[3], "the seeds differ: {values:?}");
        let claim = of(&several, variant);
        for (key, value) in [("min", values[0]), ("value", values[1]), ("max", values[3])] {
            assert_eq!(claim[key], Json::from(value), "{key}");
        }
        assert_eq!((&claim["holds"], &claim["seeds_held"]), (&true.into(), &4.into()));
    }
    let summary = fs::read_to_string(folder.join("summary.md")).unwrap();
    let (least, median, most) = (values[0][0], values[0][1], values[0][3]);
    for part in [
        "With seed 7, the first:\n".to_owned(),
        "Over 4 seeds, 7 to 10:\n".to_owned(),
        format!("| retransmissions | {median} | {least} | {most} |\n"),
        format!("- sent again: {median} [{least} to {most}] (at most 1000), holds with all 4 seeds\n"),
    ] {
        assert!(summary.contains(&part), "{part} in {summary}");
    }
}

/// A claim that fails with one seed fails the run, unless the plan has a reason; the seeds are named.
#[test]
fn a_claim_that_fails_with_one_seed_does_not_hold() {
    let plan = Plan::new("seeds-values", &lossy(&claim("a", "least = 0")));
    let folder = plan.run("results", &["--seeds", "4"]);
    let seeds = result(&folder)["variants"][0]["claims"][0]["seeds"].clone();
    let seeds = seeds.as_array().unwrap().iter();
    let values: Vec<_> =
        seeds.map(|seed| (seed["value"].as_f64().unwrap() as u64, seed["seed"].as_u64().unwrap())).collect();
    let (most, worst) = *values.iter().max().unwrap();
    assert_eq!(values.iter().filter(|(value, _)| *value == most).count(), 1, "{values:?}");
    let bound = format!("most = {}", most - 1);
    let verdict = format!("with 1 of 4 seeds ({worst})");
    for (number, (why, status)) in [("", 1), ("why = \"of luck\"", 0)].into_iter().enumerate() {
        let plan =
            Plan::new(&format!("seeds-fail-{number}"), &lossy(&claim("a", &format!("{bound}\n{why}"))));
        let output = run(&["sim", &plan.path("plan.toml"), "-o", &plan.path("results"), "--seeds", "4"]);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        let said = if status == 1 { "DOES NOT HOLD " } else { "does not hold " };
        assert!(stdout(&output).contains(&format!("{said}{verdict}")), "{}", stdout(&output));
        assert_eq!(stderr(&output).contains(&verdict), status == 1, "{}", stderr(&output));
    }
}

/// A connection that fails with a later seed alone fails the run.
#[test]
fn a_connection_that_fails_with_a_later_seed_is_told() {
    let text = format!(
        "[plan]\ntitle = \"x\"\nduration = \"60ms\"\nsample = \"1ms\"\n{FABRIC}\
         [transport]\ntimeout = 4\nlinear_retries = 1\nexponential_retries = 1\n\
         [[workload]]\nkind = \"write\"\nfrom = \"h1\"\nto = \"h5\"\nsize = \"1K\"\ncount = 4\n\
         [[fault]]\nwhere = \"h5\"\naction = \"loss=65%\"\n"
    );
    let plan = Plan::new("seeds-failure", &text);
    let alone = |seed: u64| {
        let folder = plan.path("alone");
        let seed = seed.to_string();
        run(&["sim", &plan.path("plan.toml"), "-o", &folder, "--seed", &seed]).status.code().unwrap()
    };
    let statuses: Vec<_> = (1..40).map(alone).collect();
    let first = statuses.windows(2).position(|pair| *pair == [0, 1]).unwrap() as u64 + 1;
    let arguments = ["--seed", &first.to_string(), "--seeds", "2"];
    let output = run(&[&["sim", &plan.path("plan.toml"), "-o", &plan.path("two")], &arguments[..]].concat());
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("a connection failed at ") && error.contains(&format!(" with seed {}", first + 1)),
        "{error}"
    );
}

/// Several plans in one command: a folder for each, a page, and a list of objects.
#[test]
fn several_plans_have_a_folder_each() {
    let plan = Plan::new("seeds-plans", &lossy(&claim("a", "least = 0")));
    fs::copy(plan.path("plan.toml"), plan.path("twin.toml")).unwrap();
    let (one, other, folder) = (plan.path("plan.toml"), plan.path("twin.toml"), plan.path("results"));
    let output = run(&["sim", &one, &other, "-o", &folder, "--seeds", "2"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    for part in [
        "plan: 1 of 1 claim holds with all 2 seeds\n",
        "twin: 1 of",
        "2 plans: 2 of 2 claims hold with all 2 seeds\n",
    ] {
        assert!(stdout(&output).contains(part), "{part} in {}", stdout(&output));
    }
    let folder = Path::new(&folder);
    assert_eq!(bytes(&folder.join("plan"))[..5], bytes(&folder.join("twin"))[..5]);
    let page = fs::read_to_string(folder.join("experiments.md")).unwrap();
    assert!(
        page.contains("--seeds 2`")
            && page.contains("## `twin`")
            && page.contains("| holds with all 2 seeds |")
    );
    let output = run(&["sim", &one, &other, "-o", folder.to_str().unwrap(), "--seeds", "2", "--json"]);
    let list = json(&output.stdout);
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[1], result(&folder.join("twin")));
    refused(&["sim", &one, &one], &["two plans are called plan"]);
    refused(&["sim", "all", "figure-10"], &["two plans are called figure-10"]);
    refused(&["sim", &one, &other, "--capture", "all"], &["--capture", "one plan"]);
}

#[test]
fn numbers_of_seeds_that_cannot_be_are_refused() {
    let plan = Plan::new("seeds-refused", &lossy(""));
    let file = plan.path("plan.toml");
    for number in ["0", "1001", "-1", "many"] {
        let output = run(&["sim", &file, &format!("--seeds={number}")]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("--seeds") && error.contains(&format!("'{number}'")), "{error}");
    }
    let last = u64::MAX.to_string();
    refused(&["sim", &file, "--seed", &last, "--seeds", "2"], &["--seeds", "plan", &last, "a lower --seed"]);
    plan.run("last", &["--seed", &last]);
}
