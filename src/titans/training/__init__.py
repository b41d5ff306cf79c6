"""Training: one recipe file in, one model folder out."""

from titans.training.recipe import DataRecipe, Recipe, load_recipe

__all__ = ["DataRecipe", "Recipe", "load_recipe"]
