from __future__ import annotations

from django.contrib import admin

from example_project.shop.models import Order, Report, Sale


@admin.register(Sale)
class SaleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for type checkers only
    list_display = ["sku", "lane", "buyers", "stock", "opened_at", "seconds"]
    list_filter = ["lane"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for type checkers only
    list_display = ["sale", "buyer", "created_at"]
    list_filter = ["sale__lane"]
    list_select_related = ["sale"]


@admin.register(Report)
class ReportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for type checkers only
    list_display = ["pk", "account_id", "state", "orders", "asked_at"]
