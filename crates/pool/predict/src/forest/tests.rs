use super::*;
use crate::onnx::{Attribute, Graph};

/// A tree: node 0 leads values up to 0.5 to leaf 1 (10), others to node 2, which splits feature 1 at -1 (20, 30).
fn small() -> Operator {
    let ints = |name: &str, ints: &[i64]| Attribute { name: name.to_owned(), ints: ints.to_vec(), ..Attribute::default() };
    let floats = |name: &str, floats: &[f32]| Attribute { name: name.to_owned(), floats: floats.to_vec(), ..Attribute::default() };
    let modes: [&[u8]; 5] = [b"BRANCH_LEQ", b"LEAF", b"BRANCH_LEQ", b"LEAF", b"LEAF"];
    Operator {
        op_type: "TreeEnsembleRegressor".to_owned(),
        attribute: vec![
            ints("nodes_treeids", &[0; 5]),
            ints("nodes_nodeids", &[0, 1, 2, 3, 4]),
            ints("nodes_truenodeids", &[1, 0, 3, 0, 0]),
            ints("nodes_falsenodeids", &[2, 0, 4, 0, 0]),
            ints("nodes_featureids", &[0, 0, 1, 0, 0]),
            floats("nodes_values", &[0.5, 0.0, -1.0, 0.0, 0.0]),
            Attribute { name: "nodes_modes".to_owned(), strings: modes.map(<[u8]>::to_vec).to_vec(), ..Attribute::default() },
            ints("target_treeids", &[0; 3]),
            ints("target_nodeids", &[1, 3, 4]),
            ints("target_ids", &[0; 3]),
            floats("target_weights", &[10.0, 20.0, 30.0]),
            Attribute { name: "n_targets".to_owned(), i: 1, ..Attribute::default() },
        ],
    }
}

fn attribute<'a>(of: &'a mut Operator, name: &str) -> &'a mut Attribute {
    of.attribute.iter_mut().find(|attribute| attribute.name == name).unwrap()
}

fn forest(operator: Operator) -> Result<Forest, String> {
    let model = Model { graph: Some(Graph { node: vec![operator] }), metadata_props: Vec::new() };
    Forest::read(&model, Kind::Regressor, 2)
}

#[test]
fn an_evaluation_follows_the_branches() {
    let forest = forest(small()).unwrap();
    let check = |inputs: [f32; 2], want: f64| assert!((forest.evaluate(&inputs) - want).abs() < 1e-12, "{inputs:?}");
    check([0.5, 0.0], 10.0);
    check([0.500_000_1, -1.0], 20.0);
    check([1.0, -0.999], 30.0);
    check([f32::MAX, f32::MIN], 20.0);
}

#[test]
fn an_invalid_tree_is_refused_with_the_problem() {
    let check = |change: fn(&mut Operator), want: &str| {
        let mut operator = small();
        change(&mut operator);
        let error = forest(operator).unwrap_err();
        assert!(error.contains(want), "{error:?} does not contain {want:?}");
    };
    check(|of| of.op_type = "Softmax".to_owned(), "\"Softmax\"");
    check(|of| attribute(of, "n_targets").i = 2, "n_targets");
    check(|of| attribute(of, "nodes_treeids").ints.clear(), "0 nodes");
    check(|of| attribute(of, "nodes_values").floats.truncate(4), "nodes_values has 4 entries");
    check(|of| attribute(of, "nodes_nodeids").ints[1] = 0, "duplicated");
    check(|of| attribute(of, "nodes_truenodeids").ints[0] = 9, "leads to node 9");
    check(|of| attribute(of, "nodes_truenodeids").ints[2] = 1, "two parents");
    check(|of| attribute(of, "nodes_truenodeids").ints[2] = 2, "two parents");
    check(|of| attribute(of, "nodes_featureids").ints[2] = 2, "feature 2; there are 2");
    check(|of| attribute(of, "nodes_featureids").ints[2] = -1, "feature -1");
    check(|of| attribute(of, "nodes_values").floats[0] = f32::NAN, "not finite");
    check(|of| attribute(of, "nodes_modes").strings[0] = b"BRANCH_EQ".to_vec(), "BRANCH_EQ");
    check(|of| attribute(of, "nodes_modes").strings[0] = b"LEAF".to_vec(), "two roots");
    check(|of| attribute(of, "target_nodeids").ints[0] = 2, "not a leaf");
    check(|of| attribute(of, "target_nodeids").ints[0] = 7, "does not exist");
    check(|of| attribute(of, "target_ids").ints[2] = 1, "one is supported");
    check(|of| attribute(of, "target_weights").floats[0] = f32::INFINITY, "not finite");
    check(
        |of| of.attribute.push(Attribute { name: "post_transform".to_owned(), s: b"LOGISTIC".to_vec(), ..Attribute::default() }),
        "LOGISTIC",
    );
    check(|of| of.attribute.push(Attribute { name: "nodes_values_as_tensor".to_owned(), ..Attribute::default() }), "as_tensor");
}

#[test]
fn a_cycle_is_refused_with_and_without_a_root() {
    // Node 0 is a leaf and the tree's root; nodes 1 and 2 form a cycle.
    let mut operator = small();
    attribute(&mut operator, "nodes_modes").strings =
        [&b"LEAF"[..], b"BRANCH_LEQ", b"BRANCH_LEQ", b"LEAF", b"LEAF"].map(<[u8]>::to_vec).to_vec();
    attribute(&mut operator, "nodes_truenodeids").ints = vec![0, 2, 1, 0, 0];
    attribute(&mut operator, "nodes_falsenodeids").ints = vec![0, 3, 4, 0, 0];
    attribute(&mut operator, "target_nodeids").ints = vec![0, 3, 4];
    assert!(forest(operator).unwrap_err().contains("4 nodes of the trees cannot be reached"));
}

#[test]
fn the_depth_of_a_tree_is_bounded() {
    // A chain of comparisons, each with one leaf.
    let chain = |length: i64| {
        let mut operator = small();
        let count = usize::try_from(2 * length + 1).unwrap();
        let inner = |at: i64| at < length;
        let all = || 0..i64::try_from(count).unwrap();
        attribute(&mut operator, "nodes_treeids").ints = vec![0; count];
        attribute(&mut operator, "nodes_nodeids").ints = all().collect();
        attribute(&mut operator, "nodes_truenodeids").ints = all().map(|at| if inner(at) { at + 1 } else { 0 }).collect();
        attribute(&mut operator, "nodes_falsenodeids").ints = all().map(|at| if inner(at) { length + 1 + at } else { 0 }).collect();
        attribute(&mut operator, "nodes_featureids").ints = vec![0; count];
        attribute(&mut operator, "nodes_values").floats = vec![0.0; count];
        attribute(&mut operator, "nodes_modes").strings =
            all().map(|at| if inner(at) { b"BRANCH_LEQ".to_vec() } else { b"LEAF".to_vec() }).collect();
        for name in ["target_treeids", "target_nodeids", "target_ids"] {
            attribute(&mut operator, name).ints.clear();
        }
        attribute(&mut operator, "target_weights").floats.clear();
        forest(operator)
    };
    assert!(chain(i64::from(DEPTH_MAX)).is_ok());
    assert!(chain(i64::from(DEPTH_MAX) + 1).unwrap_err().contains("deeper"));
}
