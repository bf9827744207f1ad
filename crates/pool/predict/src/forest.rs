//! Ensembles of decision trees: ONNX's `TreeEnsembleRegressor` and `TreeEnsembleClassifier` as arrays to walk.
//!
//! Everything is checked when the forest is read, so that a walk can neither leave the arrays nor go on for ever: every tree
//! has one root, from which each of its nodes is reached exactly once.

use std::collections::HashMap;

use crate::onnx::{Model, Node as Operator};

/// How many nodes all trees may have together.
pub const NODES_MAX: usize = 1 << 22;
/// How many comparisons a tree may take: a prediction's time is bounded by this.
pub const DEPTH_MAX: u32 = 128;

/// A node: goes to `below` where the feature is at most the threshold, else to `above`. In a leaf both are the leaf itself
/// and `threshold` is what it adds to the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    threshold: f32,
    feature: u32,
    below: u32,
    above: u32,
}

/// Trees whose leaves are summed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forest {
    nodes: Vec<Node>,
    roots: Vec<u32>,
    base: f64,
    features: usize,
}

/// What a forest is asked: the sum for one target, or the probability of the second of two classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regressor,
    Classifier,
}

impl Kind {
    fn operator(self) -> &'static str {
        match self {
            Self::Regressor => "TreeEnsembleRegressor",
            Self::Classifier => "TreeEnsembleClassifier",
        }
    }

    fn weights(self) -> [&'static str; 4] {
        match self {
            Self::Regressor => ["target_treeids", "target_nodeids", "target_ids", "target_weights"],
            Self::Classifier => ["class_treeids", "class_nodeids", "class_ids", "class_weights"],
        }
    }
}

impl Forest {
    /// The sum over all trees. `inputs` has as many numbers as the forest has features, all finite.
    pub(crate) fn walk(&self, inputs: &[f32]) -> f64 {
        debug_assert_eq!(inputs.len(), self.features);
        let mut sum = self.base;
        for &root in &self.roots {
            let mut at = root;
            loop {
                let node = self.nodes[at as usize];
                if node.below == at {
                    sum += f64::from(node.threshold);
                    break;
                }
                at = if inputs[node.feature as usize] <= node.threshold { node.below } else { node.above };
            }
        }
        sum
    }

    /// The forest of a model that reads so many features; or what is wrong with it, and where.
    pub(crate) fn read(model: &Model, kind: Kind, features: usize) -> Result<Self, String> {
        let operator = only_operator(model, kind)?;
        check_settings(operator, kind)?;
        let drawn = Drawn::read(operator, features)?;
        let leaves = leaves(operator, kind, &drawn)?;
        let base = operator.floats("base_values").iter().map(|&value| f64::from(value)).sum::<f64>();
        let mut forest = Self { nodes: Vec::with_capacity(drawn.len()), roots: Vec::new(), base, features };
        for tree in drawn.trees()? {
            forest.plant(&drawn, &leaves, tree)?;
        }
        // A node that no root leads to is in a ring of its own: each has at most one parent, so nothing else is left.
        if forest.nodes.len() != drawn.len() {
            return Err(format!("{} nodes of the trees cannot be reached", drawn.len() - forest.nodes.len()));
        }
        if !base.is_finite() {
            return Err("base_values holds a number that is not finite".to_owned());
        }
        Ok(forest)
    }

    /// Adds one tree, in the order in which it is walked.
    fn plant(&mut self, drawn: &Drawn<'_>, leaves: &[f32], root: usize) -> Result<(), String> {
        self.roots.push(self.next()?);
        // Place in the drawing, depth, and whose second branch it is.
        let mut waiting = vec![(root, 0u32, None::<usize>)];
        while let Some((at, depth, above_of)) = waiting.pop() {
            let here = self.next()?;
            if let Some(parent) = above_of {
                self.nodes[parent].above = here;
            }
            match drawn.branches[at] {
                None => self.nodes.push(Node { threshold: leaves[at], feature: 0, below: here, above: here }),
                Some((_, _)) if depth >= DEPTH_MAX => {
                    return Err(format!("tree {} is deeper than the {DEPTH_MAX} comparisons that are allowed", drawn.trees[at]));
                }
                Some((below, above)) => {
                    let feature = drawn.features[at];
                    self.nodes.push(Node { threshold: drawn.values[at], feature, below: here + 1, above: here + 1 });
                    // The last one pushed is planted next, right behind its parent.
                    waiting.push((above, depth + 1, Some(here as usize)));
                    waiting.push((below, depth + 1, None));
                }
            }
        }
        Ok(())
    }

    fn next(&self) -> Result<u32, String> {
        u32::try_from(self.nodes.len()).map_err(|_| "too many nodes".to_owned())
    }
}

/// The one operator of the graph that computes something.
fn only_operator(model: &Model, kind: Kind) -> Result<&Operator, String> {
    let graph = model.graph.as_ref().ok_or("not an ONNX model: it has no graph")?;
    let mut found = None;
    for operator in &graph.node {
        match operator.op_type.as_str() {
            // Hands on what the trees say under another name.
            "Identity" => {}
            name if name == kind.operator() && found.is_none() => found = Some(operator),
            name => return Err(format!("its graph has the operator {name:?}; only one {} is served", kind.operator())),
        }
    }
    found.ok_or_else(|| format!("its graph has no {}", kind.operator()))
}

/// Refuses every setting of the operator under which a plain sum would be something else.
fn check_settings(operator: &Operator, kind: Kind) -> Result<(), String> {
    for (name, allowed) in [("post_transform", "NONE"), ("aggregate_function", "SUM")] {
        if let Some(value) = operator.string(name)
            && value != allowed.as_bytes()
        {
            return Err(format!("{name} is {:?}; only {allowed} is served", String::from_utf8_lossy(value)));
        }
    }
    for name in ["nodes_values_as_tensor", "target_weights_as_tensor", "class_weights_as_tensor", "base_values_as_tensor"] {
        if operator.has(name) {
            return Err(format!("it has {name}; only 32-bit floats are served"));
        }
    }
    match kind {
        Kind::Regressor if operator.int("n_targets") != Some(1) => {
            Err(format!("n_targets is {:?}; one target is served", operator.int("n_targets")))
        }
        Kind::Classifier if operator.ints("classlabels_int64s") != [0, 1] => {
            Err(format!("its classes are {:?}; 0 and 1 are served", operator.ints("classlabels_int64s")))
        }
        // Only such a classifier leaves one sum: the probability of the second class.
        Kind::Classifier if !operator.floats("class_weights").iter().all(|&weight| weight >= 0.0) => {
            Err("class_weights holds a negative number; a forest's weights are probabilities".to_owned())
        }
        Kind::Classifier if !operator.floats("base_values").is_empty() => Err("it has base_values; a forest has none".to_owned()),
        _ => Ok(()),
    }
}

/// The trees as the file draws them: parallel arrays, nodes named by tree and number.
struct Drawn<'a> {
    trees: &'a [i64],
    values: &'a [f32],
    features: Vec<u32>,
    /// Places of the two branches; none for a leaf.
    branches: Vec<Option<(usize, usize)>>,
    places: HashMap<(i64, i64), usize>,
}

impl<'a> Drawn<'a> {
    fn read(operator: &'a Operator, features: usize) -> Result<Self, String> {
        let (trees, numbers) = (operator.ints("nodes_treeids"), operator.ints("nodes_nodeids"));
        let (below, above) = (operator.ints("nodes_truenodeids"), operator.ints("nodes_falsenodeids"));
        let (read, values, modes) = (operator.ints("nodes_featureids"), operator.floats("nodes_values"), operator.strings("nodes_modes"));
        let count = trees.len();
        if count == 0 || count > NODES_MAX {
            return Err(format!("nodes_treeids has {count} nodes; 1 to {NODES_MAX} are served"));
        }
        for (name, length) in [
            ("nodes_nodeids", numbers.len()),
            ("nodes_truenodeids", below.len()),
            ("nodes_falsenodeids", above.len()),
            ("nodes_featureids", read.len()),
            ("nodes_values", values.len()),
            ("nodes_modes", modes.len()),
        ] {
            if length != count {
                return Err(format!("{name} has {length} entries, but nodes_treeids has {count}"));
            }
        }
        let mut places = HashMap::with_capacity(count);
        for (at, name) in trees.iter().copied().zip(numbers.iter().copied()).enumerate() {
            if places.insert(name, at).is_some() {
                return Err(format!("node {} of tree {} is there twice", name.1, name.0));
            }
        }
        let mut drawn = Self { trees, values, features: vec![0; count], branches: vec![None; count], places };
        for at in 0..count {
            let name = || format!("node {} of tree {}", numbers[at], trees[at]);
            match modes[at].as_slice() {
                b"LEAF" => continue,
                b"BRANCH_LEQ" => {}
                other => {
                    return Err(format!("{} has the mode {:?}; BRANCH_LEQ and LEAF are served", name(), String::from_utf8_lossy(other)));
                }
            }
            drawn.features[at] = u32::try_from(read[at])
                .ok()
                .filter(|&feature| (feature as usize) < features)
                .ok_or_else(|| format!("{} compares feature {}; there are {features}", name(), read[at]))?;
            if !values[at].is_finite() {
                return Err(format!("{} compares with {}, which is not finite", name(), values[at]));
            }
            let branch = |to: i64| {
                drawn.places.get(&(trees[at], to)).copied().ok_or_else(|| format!("{} leads to node {to}, which is not there", name()))
            };
            drawn.branches[at] = Some((branch(below[at])?, branch(above[at])?));
        }
        Ok(drawn)
    }

    fn len(&self) -> usize {
        self.trees.len()
    }

    /// The root of each tree, in the order of the file.
    fn trees(&self) -> Result<Vec<usize>, String> {
        let mut has_parent = vec![false; self.len()];
        for (below, above) in self.branches.iter().flatten() {
            for &child in [below, above] {
                if std::mem::replace(&mut has_parent[child], true) {
                    return Err(format!("a node of tree {} is reached from two others", self.trees[child]));
                }
            }
        }
        let roots: Vec<usize> = (0..self.len()).filter(|&at| !has_parent[at]).collect();
        let mut seen = HashMap::with_capacity(roots.len());
        for &root in &roots {
            if seen.insert(self.trees[root], root).is_some() {
                return Err(format!("tree {} has two roots", self.trees[root]));
            }
        }
        Ok(roots)
    }
}

/// What each leaf adds to the sum, by place; 0 where nothing is said.
fn leaves(operator: &Operator, kind: Kind, drawn: &Drawn<'_>) -> Result<Vec<f32>, String> {
    let [trees, numbers, ids, weights] = kind.weights();
    let (of_tree, of_node, of_id, weight) = (operator.ints(trees), operator.ints(numbers), operator.ints(ids), operator.floats(weights));
    for (name, length) in [(numbers, of_node.len()), (ids, of_id.len()), (weights, weight.len())] {
        if length != of_tree.len() {
            return Err(format!("{name} has {length} entries, but {trees} has {}", of_tree.len()));
        }
    }
    let mut added = vec![0.0f32; drawn.len()];
    for at in 0..of_tree.len() {
        let name = format!("node {} of tree {}", of_node[at], of_tree[at]);
        let place = *drawn.places.get(&(of_tree[at], of_node[at])).ok_or_else(|| format!("{weights} names {name}, which is not there"))?;
        if drawn.branches[place].is_some() {
            return Err(format!("{weights} names {name}, which is no leaf"));
        }
        if of_id[at] != of_id[0] {
            return Err(format!("{ids} names {} and {}; one is served", of_id[0], of_id[at]));
        }
        if !weight[at].is_finite() {
            return Err(format!("{weights} of {name} is {}, which is not finite", weight[at]));
        }
        added[place] += weight[at];
    }
    Ok(added)
}

#[cfg(test)]
mod tests;
