from django import forms


class SaleForm(forms.Form):
    """The size of a sale; the limits keep it within what a small machine serves in a minute."""

    buyers = forms.IntegerField(min_value=1, max_value=300, initial=100)
    stock = forms.IntegerField(label="Moon cakes", min_value=1, max_value=300, initial=90)
