"""The engine behind `ademamix reproduce`: from a recipe's plan to runs, figures, tables and verdicts."""
